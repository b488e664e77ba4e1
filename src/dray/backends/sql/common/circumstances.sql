-- name: parents_open
-- The parents that a child's count stands for, or that it was cancelled with; those that ended otherwise first.
SELECT p.id, p.task, p.step, p.state, p.reason, e.satisfied
FROM dray_edges AS e JOIN dray_jobs AS p ON p.id = e.parent_id
WHERE e.child_id = :id AND e.satisfied <> 1
ORDER BY e.satisfied, p.finished_at IS NULL, e.parent_id LIMIT :limit

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
SELECT job_id, claim, attempt, worker_id, outcome, error_type, error_message, traceback, started_at, finished_at
FROM dray_attempts WHERE job_id = :id ORDER BY claim DESC LIMIT 1

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
