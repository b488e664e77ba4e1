-- name: job_find
-- Which of these ids exist.
SELECT id FROM dray_jobs WHERE id $in_ids(ids)

-- name: job_find_part
-- Ids that contain a part, newest first; reads them all.
SELECT id FROM dray_jobs WHERE CAST(id AS text) LIKE :pattern ORDER BY id DESC LIMIT :limit

-- name: unique_find
-- Who holds these unique locks.
SELECT unique_lock, id FROM dray_jobs WHERE unique_lock $in_texts(locks)

-- name: unique_expire
-- Frees unique locks whose window is over, so that the next enqueue can take them.
UPDATE dray_jobs SET unique_lock = NULL, updated_at = $now
WHERE unique_lock $in_texts(locks) AND unique_until <= $now

-- name: job_replace
-- rows: id, unique_key, task, args, priority, max_attempts, max_crashes, timeout, name, description, tags, headers, retry, keep_us, key
-- Gives the holder of a unique key, if it has not started, what another request for that key wants to be done. Never
-- the key itself: it is taken by an INSERT only. Not the holder of another task, whose arguments these are not.
UPDATE dray_jobs SET
    args = :args, max_attempts = :max_attempts, max_crashes = :max_crashes, timeout = :timeout, name = :name,
    priority = coalesce(:priority, (SELECT q.priority FROM dray_queues AS q WHERE q.name = dray_jobs.queue), 0),
    description = :description, tags = :tags, headers = :headers, retry = :retry, keep_us = :keep_us,
    key = :key, state = CASE WHEN state NOT IN ('queued', 'parked') THEN state
        WHEN CAST(:key AS text) IS NULL THEN 'queued' ELSE 'parked' END,
    updated_at = $now
WHERE id = :id AND unique_lock = :unique_key AND task = :task AND state IN ('waiting', 'scheduled', 'queued', 'parked')

-- name: job_reschedule
-- rows: id, unique_key, run_at, delay_us, expires_at, expires_us
-- Gives the holder of a unique key, if it has not started, the time of another request for that key.
UPDATE dray_jobs SET
    run_at = coalesce($at(run_at), $now + $span(delay_us)),
    state = CASE WHEN state = 'waiting' THEN state
        WHEN coalesce($at(run_at), $now + $span(delay_us)) > $now THEN 'scheduled' ELSE $ready END,
    expires_at = coalesce($at(expires_at), $now + $span(expires_us)), updated_at = $now
WHERE id = :id AND unique_lock = :unique_key AND state IN ('waiting', 'scheduled', 'queued', 'parked')

-- name: step_find
-- Which of these steps a workflow has already.
SELECT step FROM dray_jobs WHERE workflow_id = :workflow_id AND step $in_texts(steps)

-- name: parent_states
-- The states of the parents of an enqueue. Locked, ids in order, so that none can end before the child counts it.
SELECT id, state FROM dray_jobs WHERE id $in_ids(ids) ORDER BY id $for_share

-- name: queue_add
-- Makes a queue known; an existing one is left alone.
INSERT INTO dray_queues (name, created_at) SELECT value, $now FROM $texts(names) AS n WHERE TRUE
ON CONFLICT DO NOTHING

-- name: job_cancel
-- Ends jobs that have not started; on running ones notes the request, once.
UPDATE dray_jobs SET
    state = CASE WHEN state = 'running' THEN state ELSE 'cancelled' END,
    reason = CASE WHEN state = 'running' THEN NULL ELSE 'user' END,
    finished_at = CASE WHEN state = 'running' THEN NULL ELSE $now END,
    cancel_requested_at = coalesce(cancel_requested_at, $now),
    unique_lock = CASE WHEN state = 'running' OR unique_until > $now THEN unique_lock END,
    updated_at = $now
WHERE id $in_ids(ids) AND state IN ('waiting', 'scheduled', 'queued', 'parked', 'running')
RETURNING id, state

-- name: job_expire
-- Cancels jobs that were not started before their time was over; whether they have children, the fan-out finds out.
WITH picked AS MATERIALIZED (
    SELECT id FROM dray_jobs
    WHERE expires_at IS NOT NULL AND state IN ('waiting', 'scheduled', 'queued', 'parked') AND expires_at <= $now
    ORDER BY expires_at LIMIT :limit $skip_locked
)
UPDATE dray_jobs SET
    state = 'cancelled', reason = 'expired', finished_at = $now, updated_at = $now,
    unique_lock = CASE WHEN unique_until > $now THEN unique_lock END, fanout_pending = TRUE
WHERE id $in_picked
RETURNING id

-- name: job_promote
-- Queues the jobs whose time has come; returns their queues.
WITH picked AS MATERIALIZED (
    SELECT id FROM dray_jobs WHERE state = 'scheduled' AND run_at <= $now
    ORDER BY run_at LIMIT :limit $skip_locked
)
UPDATE dray_jobs SET state = $ready, updated_at = $now
WHERE id $in_picked
RETURNING queue

-- name: job_upcoming
-- When the earliest scheduled job is due, when the earliest job expires, whether children are to be told, when the
-- earliest schedule is due, and now.
SELECT (SELECT min(run_at) FROM dray_jobs WHERE state = 'scheduled'),
    (SELECT min(expires_at) FROM dray_jobs
        WHERE expires_at IS NOT NULL AND state IN ('waiting', 'scheduled', 'queued', 'parked')),
    EXISTS (SELECT 1 FROM dray_jobs WHERE fanout_pending),
    (SELECT min(next_at) FROM dray_schedules WHERE next_at IS NOT NULL AND paused_at IS NULL), $now

-- name: attempt_keep
-- Copies the completed attempt that a job's row still shows, before the job runs again.
INSERT INTO dray_attempts (job_id, claim, attempt, worker_id, outcome, started_at, finished_at)
SELECT id, claim, attempt, worker_id, 'completed', started_at, finished_at
FROM dray_jobs WHERE id $in_ids(ids) AND state = 'completed' AND $has_args
ON CONFLICT DO NOTHING

-- name: job_retry
-- Puts ended jobs back to the start; the claim number goes on, so that no old claim fits again. Not those whose
-- arguments were dropped when they completed.
UPDATE dray_jobs SET
    state = $ready, waiting_on = 0, reason = NULL, attempt = 0, crashes = 0, worker_id = NULL, run_at = $now,
    started_at = NULL, finished_at = NULL, error = NULL, error_key = NULL, result = NULL, progress = NULL,
    progress_message = NULL, cancel_requested_at = NULL, fanout_pending = FALSE, updated_at = $now,
    expires_at = CASE WHEN expires_at > $now THEN expires_at END
WHERE id $in_ids(ids) AND state IN ('completed', 'failed', 'cancelled') AND $has_args
RETURNING id

-- name: retry_blocked
-- Why jobs cannot start over: a parent that failed or was cancelled, unless the job runs after such too; no parent at
-- all (NULL), where the one that the job was cancelled with has been removed.
WITH picked AS MATERIALIZED (
    SELECT e.parent_id AS id FROM dray_edges AS e WHERE e.child_id $in_ids(ids)
), lost AS MATERIALIZED (
    SELECT p.id FROM dray_jobs AS p WHERE p.id $in_picked AND p.state IN ('failed', 'cancelled')
)
SELECT e.child_id, e.parent_id
FROM lost JOIN dray_edges AS e ON e.parent_id = lost.id JOIN dray_jobs AS c ON c.id = e.child_id
WHERE e.child_id $in_ids(ids) AND c.id $in_ids(ids) AND c.on_parent_failure <> 'run'
UNION ALL
SELECT j.id, NULL FROM dray_jobs AS j WHERE j.id $in_ids(ids) AND j.state = 'cancelled' AND j.reason = 'parent'
    AND NOT EXISTS (SELECT 1 FROM dray_edges AS e WHERE e.child_id = j.id AND e.satisfied = -1)

-- name: retry_lock_parents
-- Keeps the parents of jobs that start over from ending until it is counted which of them are live.
WITH picked AS MATERIALIZED (
    SELECT e.parent_id AS id FROM dray_edges AS e WHERE e.child_id $in_ids(ids)
)
SELECT p.id FROM dray_jobs AS p WHERE p.id $in_picked ORDER BY p.id $for_share

-- name: retry_own_edges
-- A job that starts over waits for those of its parents that are live. The others completed, or it runs after them
-- however they ended.
UPDATE dray_edges SET satisfied = CASE WHEN (SELECT p.state FROM dray_jobs AS p WHERE p.id = parent_id)
    IN ('waiting', 'scheduled', 'queued', 'parked', 'running') THEN 0 ELSE 1 END
WHERE child_id $in_ids(ids)

-- name: retry_wait
-- Jobs that start over and have live parents wait for them.
UPDATE dray_jobs SET state = 'waiting',
    waiting_on = (SELECT count(*) FROM dray_edges AS e WHERE e.child_id = dray_jobs.id AND e.satisfied = 0)
WHERE id $in_ids(ids) AND state IN ('queued', 'parked')
    AND EXISTS (SELECT 1 FROM dray_edges AS e WHERE e.child_id = dray_jobs.id AND e.satisfied = 0)

-- name: retry_child_edges
-- Children that a retried job had failed wait for it again.
UPDATE dray_edges SET satisfied = 0 WHERE parent_id $in_ids(ids) AND satisfied = -1
RETURNING child_id

-- name: retry_children
-- Brings back the children that were cancelled with a parent, where each parent is now live or fulfilled.
UPDATE dray_jobs SET
    waiting_on = (SELECT count(*) FROM dray_edges AS e WHERE e.child_id = dray_jobs.id AND e.satisfied = 0),
    state = 'waiting', reason = NULL, finished_at = NULL, attempt = 0, crashes = 0,
    cancel_requested_at = NULL, fanout_pending = FALSE, updated_at = $now,
    expires_at = CASE WHEN expires_at > $now THEN expires_at END
WHERE id $in_ids(ids) AND state = 'cancelled' AND reason = 'parent'
    AND NOT EXISTS (SELECT 1 FROM dray_edges AS e WHERE e.child_id = dray_jobs.id AND e.satisfied = -1)
RETURNING id

-- name: job_lock
-- Waits for transactions that are wiring children to these jobs, so that the next statement sees their edges.
SELECT id FROM dray_jobs WHERE id $in_ids(ids) ORDER BY id $for_update

-- name: job_rows
-- How many rows jobs have in all tables.
SELECT j.id, $rows_of(j) FROM dray_jobs AS j WHERE j.id $in_ids(ids)

-- name: job_delete
-- Removes jobs that do not run and that no child needs.
DELETE FROM dray_jobs
WHERE id $in_ids(ids) AND state <> 'running' AND NOT fanout_pending
    AND NOT $needed(dray_jobs)
RETURNING id

-- name: job_counts
-- How many jobs there are, by queue and state.
SELECT j.queue, $shown_state(j), count(*) FROM dray_jobs AS j GROUP BY j.queue, 2 ORDER BY $by_text(queue), 2

-- name: job_oldest_queued
-- Since when the first job of each queue could have run.
SELECT queue, min(run_at) FROM (
    SELECT queue, run_at FROM dray_jobs WHERE state = 'queued'
    UNION ALL
    SELECT queue, run_at FROM dray_jobs WHERE state = 'parked'
) AS ready GROUP BY queue ORDER BY $by_text(queue)

-- name: job_finished_since
-- How many jobs ended since an instant, by state.
SELECT state, count(*) FROM dray_jobs
WHERE finished_at IS NOT NULL AND state IN ('completed', 'failed', 'cancelled') AND finished_at >= $at(since)
GROUP BY state

-- name: job_durations
-- How long the newest completed bodies ran, in microseconds.
SELECT $microseconds(finished_at - started_at) FROM dray_jobs
WHERE state = 'completed' AND finished_at IS NOT NULL AND started_at IS NOT NULL AND finished_at >= $at(since)
ORDER BY finished_at DESC LIMIT :limit

-- name: attempt_list
-- The ended attempts of a job, oldest first.
SELECT job_id, claim, attempt, worker_id, outcome, error_type, error_message, traceback, started_at, finished_at,
    error_class
FROM dray_attempts WHERE job_id = :id ORDER BY claim

-- name: attempt_trim
-- Keeps the newest attempts of jobs. Which is the first to go is looked up once a job: asked of each attempt it took
-- 0.8 s for 1,000 jobs with 100 attempts.
WITH full_job AS MATERIALIZED (
    SELECT j.id, (SELECT a.claim FROM dray_attempts AS a WHERE a.job_id = j.id
        ORDER BY a.claim DESC LIMIT 1 OFFSET :keep) AS claim
    FROM dray_jobs AS j WHERE j.id $in_ids(ids)
)
DELETE FROM dray_attempts WHERE job_id $in_ids(ids) AND (job_id, claim) IN (
    SELECT a.job_id, a.claim FROM full_job AS f JOIN dray_attempts AS a ON a.job_id = f.id AND a.claim <= f.claim
    WHERE f.claim IS NOT NULL
)

-- name: log_list
-- The captured lines of a job from a sequence number on.
SELECT seq, job_id, claim, at, level, logger, message FROM dray_logs
WHERE job_id = :id AND seq > :after ORDER BY seq LIMIT :limit

-- name: log_trim
-- Keeps the newest lines of a job.
DELETE FROM dray_logs WHERE job_id = :id AND seq <= (
    SELECT seq FROM dray_logs WHERE job_id = :id ORDER BY seq DESC LIMIT 1 OFFSET :keep
)

-- name: job_get
-- Jobs by id, oldest first.
SELECT $job_columns FROM $jobs WHERE j.id $in_ids(ids) ORDER BY j.id

-- name: job_ended
-- Which of these ids exist, and whether they have ended: what waiters ask all the time, so no more than that.
SELECT id, state IN ('completed', 'failed', 'cancelled') FROM dray_jobs WHERE id $in_ids(ids)

-- name: job_list
-- Jobs that fit every given filter, newest first, before an id and not before another.
SELECT $job_columns FROM $jobs WHERE j.id < :before AND j.id >= :first AND $fits ORDER BY j.id DESC LIMIT :limit

-- name: list_run
-- Jobs of some workflows that fit, newest first. The ids first: a planner that goes by the order of ids instead reads
-- every newer job.
WITH picked AS MATERIALIZED (SELECT id FROM dray_jobs WHERE workflow_id $in_ids(runs))
SELECT $job_columns FROM $jobs WHERE j.id $in_picked AND j.id < :before AND $fits ORDER BY j.id DESC LIMIT :limit

-- name: list_runs_named
-- The same of all workflows of a name.
WITH picked AS MATERIALIZED (
    SELECT s.id FROM dray_workflows AS w CROSS JOIN dray_jobs AS s WHERE w.name = :workflow AND s.workflow_id = w.id
)
SELECT $job_columns FROM $jobs WHERE j.id $in_picked AND j.id < :before AND $fits ORDER BY j.id DESC LIMIT :limit

-- name: progress_set
-- rows: id, worker_id, claim, progress, message
-- How far a job is, reported by the claim that holds it, or that has completed it in a transaction of its body's. Not
-- while another transaction has the row: it may be open for an hour, and the worker claims nothing meanwhile.
UPDATE dray_jobs SET progress = :progress, progress_message = :message, updated_at = $now
WHERE id = (SELECT j.id FROM dray_jobs AS j WHERE j.id = :id AND j.worker_id = :worker_id AND j.claim = :claim
    AND j.state IN ('running', 'completed') $skip_locked)

-- name: log_insert
-- rows: id, worker_id, claim, age_us, level, logger, message
-- One captured log line, from the claim that holds the job, or that has completed it in a transaction of its body's.
-- The reference to the job would wait for a transaction that is about to delete its row.
INSERT INTO dray_logs (job_id, claim, at, level, logger, message)
SELECT j.id, j.claim, $now - $span(age_us), CAST(:level AS text), CAST(:logger AS text), CAST(:message AS text)
FROM dray_jobs AS j
WHERE j.id = :id AND j.worker_id = :worker_id AND j.claim = :claim AND j.state IN ('running', 'completed')
$skip_referred_j

-- name: settle_found
-- What became of claims that a settle did not find running.
SELECT id, state, claim, worker_id FROM dray_jobs WHERE id $in_ids(ids)

-- name: settle_recorded
-- Which attempts at these jobs a worker ended itself.
SELECT job_id, claim FROM dray_attempts
WHERE job_id $in_ids(ids) AND worker_id = :worker_id AND outcome <> 'crashed'
