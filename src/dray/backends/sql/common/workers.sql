-- name: worker_register
-- A new worker with its first lease; repeating it changes nothing.
INSERT INTO dray_workers (id, name, host, pid, boot, lock, queues, tasks, concurrency, state,
    started_at, last_seen_at, lease_until, knows)
VALUES (:id, :name, :host, :pid, :boot, :lock, :queues, :tasks, :concurrency, 'active',
    $now, $now, $steady + $span(lease_us), :knows)
ON CONFLICT DO NOTHING

-- name: worker_beat
-- Renews a lease. No row: the worker was declared dead or stopped.
UPDATE dray_workers SET last_seen_at = $now, lease_until = $steady + $span(lease_us), state = :state,
    trouble = :trouble
WHERE id = :id AND state IN ('active', 'draining')

-- name: worker_held
-- What a worker has running, and which of it was asked to stop.
SELECT id, claim, cancel_requested_at IS NOT NULL FROM dray_jobs
WHERE worker_id = :id AND state = 'running' ORDER BY id

-- name: worker_stop
-- A worker leaves in order.
UPDATE dray_workers SET state = 'stopped', stopped_at = $now, last_seen_at = $now
WHERE id = :id AND state IN ('active', 'draining')

-- name: worker_list
-- Workers, live ones first, newest first.
SELECT id, name, host, pid, boot, lock, queues, tasks, concurrency, state, started_at, last_seen_at, lease_until,
    stopped_at, trouble
FROM dray_workers ORDER BY state IN ('stopped', 'dead'), id DESC LIMIT :limit

-- name: rescue_look
-- Whether any running job's worker is dead, stopped or unknown: one step in the index for each worker, not each job.
-- And what the clock says by which leases are given.
WITH RECURSIVE holder (id) AS (
    SELECT (SELECT worker_id FROM dray_jobs WHERE state = 'running' ORDER BY worker_id LIMIT 1)
    UNION ALL
    SELECT (SELECT j.worker_id FROM dray_jobs AS j WHERE j.state = 'running' AND j.worker_id > holder.id
        ORDER BY j.worker_id LIMIT 1)
    FROM holder WHERE holder.id IS NOT NULL
)
SELECT EXISTS (SELECT 1 FROM holder WHERE id IS NOT NULL AND NOT EXISTS (
    SELECT 1 FROM dray_workers AS w WHERE w.id = holder.id AND w.state IN ('active', 'draining')
)), $steady

-- name: worker_prune
-- Forgets some of the workers that ended long ago and left nothing running.
WITH picked AS MATERIALIZED (
    SELECT w.id FROM dray_workers AS w WHERE w.state IN ('stopped', 'dead') AND w.stopped_at < $at(before)
        AND NOT EXISTS (SELECT 1 FROM dray_jobs AS j WHERE j.worker_id = w.id AND j.state = 'running')
    LIMIT :limit
)
DELETE FROM dray_workers WHERE id $in_picked
RETURNING id

-- name: rescue_pick
-- Running jobs whose worker is dead, stopped or unknown.
SELECT j.id, j.claim, j.worker_id, j.attempt, j.max_attempts, j.crashes, j.max_crashes, j.queue, j.task
FROM dray_jobs AS j
WHERE j.state = 'running' AND NOT EXISTS (
    SELECT 1 FROM dray_workers AS w WHERE w.id = j.worker_id AND w.state IN ('active', 'draining')
)
ORDER BY j.worker_id, j.id LIMIT :limit $skip_locked_j

-- name: rescue_spare
-- Which of these workers live. A statement of its own: a job that was rescued and claimed again just before
-- `rescue_pick` locked it comes with its new worker, of whom that statement is not asked again.
SELECT id FROM dray_workers WHERE id $in_ids(ids) AND state IN ('active', 'draining')

-- name: lease_take
-- Takes a duty that is free: never held, resigned, or held by a worker that is gone; the term goes up. Its holder,
-- repeating a take whose answer was lost, gets the term it has.
INSERT INTO dray_leases (duty, holder, term, taken_at) VALUES (:duty, :holder, 1, $now)
ON CONFLICT (duty) DO UPDATE SET holder = excluded.holder,
    taken_at = CASE WHEN dray_leases.holder = excluded.holder THEN dray_leases.taken_at ELSE excluded.taken_at END,
    term = CASE WHEN dray_leases.holder = excluded.holder THEN dray_leases.term ELSE dray_leases.term + 1 END
WHERE dray_leases.holder IS NULL OR dray_leases.holder = excluded.holder OR NOT EXISTS (
    SELECT 1 FROM dray_workers AS w WHERE w.id = dray_leases.holder AND w.state IN ('active', 'draining')
)
RETURNING term

-- name: lease_resign
-- Gives a duty back, if it is still held under this term.
UPDATE dray_leases SET holder = NULL WHERE duty = :duty AND holder = :holder AND term = :term

-- name: lease_resign_all
-- Gives back all duties of a worker that leaves.
UPDATE dray_leases SET holder = NULL WHERE holder = :holder

-- name: lease_held
-- The duties that a live worker has.
SELECT l.duty, l.holder, l.term, l.taken_at FROM dray_leases AS l
JOIN dray_workers AS w ON w.id = l.holder AND w.state IN ('active', 'draining') ORDER BY l.duty

-- name: lease_list
-- Who has which duty.
SELECT duty, holder, term, taken_at FROM dray_leases ORDER BY duty

-- name: queue_set
-- Makes or changes a queue's default priority; jobs already there keep theirs.
INSERT INTO dray_queues (name, priority, created_at) VALUES (:name, :priority, $now)
ON CONFLICT (name) DO UPDATE SET priority = excluded.priority

-- name: queue_pause
-- Pauses a queue; a queue that was never used can be paused too. Paused before: that time stays.
INSERT INTO dray_queues (name, paused_at, created_at) VALUES (:name, $now, $now)
ON CONFLICT (name) DO UPDATE SET paused_at = excluded.paused_at WHERE dray_queues.paused_at IS NULL

-- name: queue_resume
-- Lets a paused queue go on.
UPDATE dray_queues SET paused_at = NULL WHERE name = :name AND paused_at IS NOT NULL

-- name: queue_list
-- All queues by name.
SELECT name, priority, paused_at, created_at FROM dray_queues ORDER BY $by_text(name)

-- name: meta_list
-- The version of the tables and the oldest code that may write to them.
SELECT name, value FROM dray_meta

-- name: meta_set
-- Notes a fact about the tables.
INSERT INTO dray_meta (name, value) VALUES (:name, :value)
ON CONFLICT (name) DO UPDATE SET value = excluded.value
