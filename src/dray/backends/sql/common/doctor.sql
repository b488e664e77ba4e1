-- name: doctor_ready
-- What is ready, by queue and task: how many (at most `most` are counted) and since when, found by hopping along the
-- indexes. Of tasks with keys it counts on its own row.
WITH RECURSIVE line (queue) AS (
    SELECT min(queue) FROM dray_jobs WHERE state = 'queued'
    UNION ALL
    SELECT (SELECT min(j.queue) FROM dray_jobs AS j WHERE j.state = 'queued' AND j.queue > line.queue)
    FROM line WHERE line.queue IS NOT NULL
), stretch (queue, task) AS (
    SELECT line.queue, (SELECT min(j.task) FROM dray_jobs AS j WHERE j.state = 'queued' AND j.queue = line.queue)
    FROM line WHERE line.queue IS NOT NULL
    UNION ALL
    SELECT stretch.queue, (SELECT min(j.task) FROM dray_jobs AS j
        WHERE j.state = 'queued' AND j.queue = stretch.queue AND j.task > stretch.task)
    FROM stretch WHERE stretch.task IS NOT NULL
), keyed_line (queue) AS (
    SELECT min(queue) FROM dray_jobs WHERE state = 'parked'
    UNION ALL
    SELECT (SELECT min(j.queue) FROM dray_jobs AS j WHERE j.state = 'parked' AND j.queue > keyed_line.queue)
    FROM keyed_line WHERE keyed_line.queue IS NOT NULL
), keyed (queue, task) AS (
    SELECT keyed_line.queue,
        (SELECT min(j.task) FROM dray_jobs AS j WHERE j.state = 'parked' AND j.queue = keyed_line.queue)
    FROM keyed_line WHERE keyed_line.queue IS NOT NULL
    UNION ALL
    SELECT keyed.queue, (SELECT min(j.task) FROM dray_jobs AS j
        WHERE j.state = 'parked' AND j.queue = keyed.queue AND j.task > keyed.task)
    FROM keyed WHERE keyed.task IS NOT NULL
)
SELECT s.queue, s.task,
    (SELECT count(*) FROM (SELECT 1 FROM dray_jobs AS j
        WHERE j.state = 'queued' AND j.queue = s.queue AND j.task = s.task LIMIT :most) AS few),
    (SELECT min(few.run_at) FROM (SELECT j.run_at FROM dray_jobs AS j
        WHERE j.state = 'queued' AND j.queue = s.queue AND j.task = s.task LIMIT :most) AS few)
FROM (SELECT queue, task FROM stretch WHERE task IS NOT NULL LIMIT :pairs) AS s
UNION ALL
SELECT s.queue, s.task,
    (SELECT count(*) FROM (SELECT 1 FROM dray_jobs AS j
        WHERE j.state = 'parked' AND j.queue = s.queue AND j.task = s.task LIMIT :most) AS few),
    (SELECT min(few.run_at) FROM (SELECT j.run_at FROM dray_jobs AS j
        WHERE j.state = 'parked' AND j.queue = s.queue AND j.task = s.task LIMIT :most) AS few)
FROM (SELECT queue, task FROM keyed WHERE task IS NOT NULL LIMIT :pairs) AS s

-- name: doctor_moved
-- How many jobs of a queue or of a task have started or ended since an instant, among the newest `most` that ended.
SELECT (SELECT count(*) FROM (SELECT queue, task, started_at FROM dray_jobs WHERE state = 'running' LIMIT :most) AS r
        WHERE (r.queue = :queue OR r.task = :task) AND r.started_at > $at(since))
    + (SELECT count(*) FROM (SELECT queue, task FROM dray_jobs WHERE state = 'completed' AND finished_at IS NOT NULL
            AND finished_at > $at(since) ORDER BY finished_at DESC LIMIT :most) AS c
        WHERE c.queue = :queue OR c.task = :task)
    + (SELECT count(*) FROM (SELECT queue, task FROM dray_jobs WHERE state = 'failed' AND finished_at IS NOT NULL
            AND finished_at > $at(since) ORDER BY finished_at DESC LIMIT :most) AS f
        WHERE f.queue = :queue OR f.task = :task)

-- name: doctor_due
-- The first job whose time has come and that was not queued: its queue, its task, and since when.
SELECT queue, task, run_at FROM dray_jobs WHERE state = 'scheduled' AND run_at <= $now ORDER BY run_at LIMIT 1

-- name: doctor_running
-- Running jobs that have a timeout, at most `most`.
SELECT id, task, worker_id, started_at, timeout FROM dray_jobs
WHERE state = 'running' AND timeout IS NOT NULL LIMIT :most

-- name: doctor_ended
-- How many jobs completed and failed since an instant; at most `most` of each are counted.
SELECT (SELECT count(*) FROM (SELECT 1 FROM dray_jobs WHERE state = 'completed' AND finished_at IS NOT NULL
        AND finished_at >= $at(since) LIMIT :most) AS completed),
    (SELECT count(*) FROM (SELECT 1 FROM dray_jobs WHERE state = 'failed' AND finished_at IS NOT NULL
        AND finished_at >= $at(since) LIMIT :most) AS failed)

-- name: doctor_unpruned
-- How many jobs that ended in a state before an instant are still there, and could go; at most `most` are counted.
SELECT count(*) FROM (
    SELECT 1 FROM dray_jobs AS j
    WHERE state = :state AND finished_at IS NOT NULL AND finished_at < $at(before)
        AND workflow_id IS NULL AND NOT fanout_pending
        AND (unique_lock IS NULL OR unique_until IS NULL OR unique_until <= $now)
        AND NOT $needed(j)
    LIMIT :most
) AS few

-- name: doctor_newest
-- When the newest job was made, and a worker was last seen.
SELECT (SELECT created_at FROM dray_jobs ORDER BY id DESC LIMIT 1), (SELECT max(last_seen_at) FROM dray_workers)
