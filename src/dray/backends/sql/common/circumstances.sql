-- name: live_kinds
-- Of these jobs, the oldest live one of each task in each queue and state: it tells why the others do not run.
SELECT min(CAST(id AS text)), queue, task, state FROM dray_jobs
WHERE id $in_ids(ids) AND finished_at IS NULL
GROUP BY queue, task, state

-- name: parents_open
-- The parents that a child's count stands for, or that it was cancelled with; those that ended otherwise first.
SELECT p.id, p.task, p.step, $shown_state(p), p.reason, e.satisfied
FROM dray_edges AS e JOIN dray_jobs AS p ON p.id = e.parent_id
WHERE e.child_id = :id AND e.satisfied <> 1
ORDER BY e.satisfied, p.finished_at IS NULL, e.parent_id LIMIT :limit

-- name: parents_lost
-- As `retry_blocked`, with what people want to know of the parents.
WITH picked AS MATERIALIZED (
    SELECT e.parent_id AS id FROM dray_edges AS e WHERE e.child_id $in_ids(ids)
), lost AS MATERIALIZED (
    SELECT p.id, p.task, p.step, p.state, p.reason, p.workflow_id
    FROM dray_jobs AS p WHERE p.id $in_picked AND p.state IN ('failed', 'cancelled')
)
SELECT e.child_id, lost.id, lost.task, lost.step, lost.state, lost.reason, lost.workflow_id
FROM lost JOIN dray_edges AS e ON e.parent_id = lost.id JOIN dray_jobs AS c ON c.id = e.child_id
WHERE e.child_id $in_ids(ids) AND c.id $in_ids(ids) AND c.on_parent_failure <> 'run'
UNION ALL
SELECT j.id, NULL, NULL, NULL, NULL, NULL, NULL FROM dray_jobs AS j
WHERE j.id $in_ids(ids) AND j.state = 'cancelled' AND j.reason = 'parent'
    AND NOT EXISTS (SELECT 1 FROM dray_edges AS e WHERE e.child_id = j.id AND e.satisfied = -1)
ORDER BY 1, 2 LIMIT :limit

-- name: queue_get
-- One queue by name.
SELECT name, priority, paused_at, created_at FROM dray_queues WHERE name = :name

-- name: worker_get
-- One worker by id.
SELECT id, name, host, pid, boot, lock, queues, tasks, concurrency, state, started_at, last_seen_at, lease_until,
    stopped_at
FROM dray_workers WHERE id = :id

-- name: worker_loads
-- How many jobs each worker has claimed.
SELECT worker_id, count(*) FROM dray_jobs WHERE state = 'running' GROUP BY worker_id

-- name: attempt_last
-- The newest recorded attempt of a job.
SELECT job_id, claim, attempt, worker_id, outcome, error_type, error_message, traceback, started_at, finished_at,
    error_class
FROM dray_attempts WHERE job_id = :id ORDER BY claim DESC LIMIT 1

-- name: attempt_starts
-- How many recorded attempts were the first of a start.
SELECT count(*) FROM dray_attempts WHERE job_id = :id AND attempt = 1

-- name: ready_ahead
-- How many jobs of each task come before a ready one in its queue, at most twice `limit` of each; by hopping along the
-- index and reading no more of it than is counted.
WITH RECURSIVE present (task) AS (
    SELECT min(task) FROM dray_jobs WHERE state = 'queued' AND queue = :queue
    UNION ALL
    SELECT (SELECT min(j.task) FROM dray_jobs AS j
        WHERE j.state = 'queued' AND j.queue = :queue AND j.task > present.task)
    FROM present WHERE present.task IS NOT NULL
)
SELECT present.task,
    (SELECT count(*) FROM (SELECT 1 FROM dray_jobs AS j
        WHERE j.state = 'queued' AND j.queue = :queue AND j.task = present.task AND j.priority > :priority
        LIMIT :limit) AS higher)
    + (SELECT count(*) FROM (SELECT 1 FROM dray_jobs AS j
        WHERE j.state = 'queued' AND j.queue = :queue AND j.task = present.task AND j.priority = :priority
            AND (j.run_at, j.id) < ($at(run_at), :id)
        LIMIT :limit) AS earlier)
FROM present WHERE present.task IS NOT NULL

-- name: ready_ahead_keyed
-- How many jobs with keys, of each task but one, come before a ready one in its queue by their priority, at most `limit`
-- of each. Those of the same priority take turns with it.
WITH RECURSIVE present (task) AS (
    SELECT min(task) FROM dray_jobs WHERE state = 'parked' AND queue = :queue
    UNION ALL
    SELECT (SELECT min(j.task) FROM dray_jobs AS j
        WHERE j.state = 'parked' AND j.queue = :queue AND j.task > present.task)
    FROM present WHERE present.task IS NOT NULL
)
SELECT present.task, (SELECT count(*) FROM (SELECT 1 FROM dray_jobs AS j
    WHERE j.state = 'parked' AND j.queue = :queue AND j.task = present.task AND j.priority > :priority
    LIMIT :limit) AS higher)
FROM present WHERE present.task IS NOT NULL AND present.task <> :but

-- name: held_by
-- How many running jobs a limit counts, of one key or of all, and some of them, the one that has run longest first.
SELECT count(*) OVER (), h.id, h.task, w.name, h.started_at
FROM dray_jobs AS h LEFT JOIN dray_workers AS w ON w.id = h.worker_id
WHERE h.held AND $is_running(h) AND CASE :scope WHEN 'task' THEN h.task ELSE h.queue END = :name
    AND (CAST(:key AS text) IS NULL OR h.key = :key)
ORDER BY h.started_at, h.id LIMIT :limit

-- name: turns_ahead
-- What comes before a job with a key among those of its task in its queue: other keys with jobs of its priority, by
-- hopping along the index, jobs of its own key, and jobs of a higher priority; at most `limit` of each.
WITH RECURSIVE hop (key, n) AS (
    SELECT min(key), 1 FROM dray_jobs
    WHERE state = 'parked' AND queue = :queue AND task = :task AND priority = :priority
    UNION ALL
    SELECT (SELECT min(j.key) FROM dray_jobs AS j WHERE j.state = 'parked' AND j.queue = :queue
        AND j.task = :task AND j.priority = :priority AND j.key > hop.key), hop.n + 1
    FROM hop WHERE hop.key IS NOT NULL AND hop.n <= :limit
)
SELECT (SELECT count(*) FROM (SELECT 1 FROM hop WHERE key <> :key LIMIT :limit) AS others),
    (SELECT count(*) FROM (SELECT 1 FROM dray_jobs AS j
        WHERE j.state = 'parked' AND j.queue = :queue AND j.task = :task AND j.priority = :priority AND j.key = :key
            AND (j.run_at, j.id) < ($at(run_at), :id)
        LIMIT :limit) AS earlier),
    (SELECT count(*) FROM (SELECT 1 FROM dray_jobs AS j
        WHERE j.state = 'parked' AND j.queue = :queue AND j.task = :task AND j.priority > :priority
        LIMIT :limit) AS higher)
