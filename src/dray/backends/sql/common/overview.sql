-- name: overview_schedules
-- How many schedules there are, counted up to a limit.
SELECT count(*) FROM (SELECT 1 FROM dray_schedules LIMIT :limit) AS part

-- name: overview_schedules_next
-- The schedules that fire next; those that are overdue come first.
SELECT $schedule_columns FROM dray_schedules WHERE next_at IS NOT NULL AND paused_at IS NULL
ORDER BY next_at LIMIT :limit

-- name: overview_next_job
-- When the next scheduled job is due.
SELECT run_at FROM dray_jobs WHERE state = 'scheduled' ORDER BY run_at LIMIT 1

-- name: overview_any_job
-- Whether there is a job, and whether there has ever been a worker.
SELECT (SELECT id FROM dray_jobs ORDER BY id LIMIT 1) IS NOT NULL, EXISTS (SELECT 1 FROM dray_workers)

-- name: overview_died
-- Workers that were declared dead since an instant, newest first.
SELECT id, name, host, pid, state, queues, concurrency, started_at, last_seen_at, stopped_at FROM dray_workers
WHERE state = 'dead' AND stopped_at >= $at(since) ORDER BY stopped_at DESC LIMIT :limit

-- name: overview_ended_workers
-- Workers that have ended, newest first.
SELECT id, name, host, pid, state, queues, concurrency, started_at, last_seen_at, stopped_at FROM dray_workers
WHERE state IN ('stopped', 'dead') ORDER BY stopped_at DESC LIMIT :limit

-- name: overview_worker_tasks
-- The tasks that workers know.
SELECT id, tasks FROM dray_workers WHERE id $in_ids(ids)

-- name: overview_worker
-- One worker.
SELECT id, name, host, pid, boot, lock, queues, tasks, concurrency, state, started_at, last_seen_at, lease_until,
    stopped_at, trouble
FROM dray_workers WHERE id = :id

-- name: overview_taken_back
-- The jobs that were taken back from a worker, by the state that they are in now, counted up to a limit.
SELECT $shown_state(j), count(*) FROM (
    SELECT job_id FROM dray_attempts WHERE worker_id = :id AND outcome = 'crashed' LIMIT :limit
) AS part JOIN dray_jobs AS j ON j.id = part.job_id GROUP BY 1

-- name: overview_taken_back_jobs
-- Some of the jobs that were taken back from a worker.
SELECT $live_columns FROM (
    SELECT job_id FROM dray_attempts WHERE worker_id = :id AND outcome = 'crashed' LIMIT :limit
) AS part JOIN dray_jobs AS j ON j.id = part.job_id ORDER BY j.id

-- name: overview_runs_of_worker
-- What a worker runs.
SELECT $live_columns FROM dray_jobs AS j WHERE j.state = 'running' AND j.worker_id = :id LIMIT :limit

-- name: overview_queue_newest
-- The newest jobs of a queue, among a bounded number of the newest of all.
SELECT $live_columns FROM (
    SELECT id FROM (SELECT id, queue FROM dray_jobs ORDER BY id DESC LIMIT :among) AS newest
    WHERE queue = :queue ORDER BY id DESC LIMIT :limit
) AS part JOIN dray_jobs AS j ON j.id = part.id ORDER BY j.id DESC
