-- name: live_now
-- The time of a look: everything else in the same read happened before, or a moment after it.
SELECT $now

-- name: live_running
-- What runs.
SELECT $live_columns FROM dray_jobs AS j WHERE j.state = 'running' LIMIT :limit

-- name: live_jobs
-- Jobs by id.
SELECT $live_columns FROM dray_jobs AS j WHERE j.id $in_ids(ids)

-- name: live_ended
-- Jobs that ended in one state after a place in the order of (finished_at, id), oldest first.
SELECT $live_columns FROM dray_jobs AS j
WHERE j.state = :state AND j.finished_at IS NOT NULL AND j.finished_at >= $at(after)
    AND (j.finished_at > $at(after) OR j.id > :after_id)
ORDER BY j.finished_at, j.id LIMIT :limit

-- name: live_ended_newest
-- Jobs that ended in one state since an instant, newest first.
SELECT $live_columns FROM dray_jobs AS j
WHERE j.state = :state AND j.finished_at IS NOT NULL AND j.finished_at >= $at(since)
ORDER BY j.finished_at DESC LIMIT :limit

-- name: live_enqueued
-- Jobs whose ids lie between two others, oldest first.
SELECT $live_columns FROM dray_jobs AS j WHERE j.id > :after_id AND j.id <= :until_id ORDER BY j.id LIMIT :limit

-- name: live_enqueued_newest
-- The same, newest first.
SELECT $live_columns FROM dray_jobs AS j WHERE j.id > :after_id AND j.id <= :until_id ORDER BY j.id DESC LIMIT :limit

-- name: live_put_back
-- Of the jobs that are due next, those that ran before and were put back since an instant.
SELECT * FROM (
    SELECT $live_columns FROM dray_jobs AS j WHERE j.state = 'scheduled' ORDER BY j.run_at LIMIT :limit
) AS next WHERE claim > 0 AND updated_at >= $at(since)

-- name: live_logs
-- Captured lines after a sequence number.
SELECT l.seq, l.job_id, l.at, l.level, l.logger, l.message, j.task, j.queue
FROM dray_logs AS l JOIN dray_jobs AS j ON j.id = l.job_id
WHERE l.seq > :after ORDER BY l.seq LIMIT :limit

-- name: live_log_at
-- The first captured line from a sequence number on, and when it was said.
SELECT seq, at FROM dray_logs WHERE seq >= :seq ORDER BY seq LIMIT 1

-- name: live_log_last
-- The newest captured line's sequence number.
SELECT coalesce(max(seq), 0) FROM dray_logs

-- name: live_workers
-- Workers that live, and those that ended since an instant.
SELECT id, name, host, pid, state, queues, concurrency, started_at, last_seen_at, stopped_at FROM dray_workers
WHERE state IN ('active', 'draining') OR stopped_at >= $at(since)
ORDER BY state IN ('stopped', 'dead'), id LIMIT :limit

-- name: live_idle
-- Whether nothing runs and nothing is ready or due.
SELECT NOT EXISTS (SELECT 1 FROM dray_jobs WHERE state = 'running')
    AND NOT EXISTS (SELECT 1 FROM dray_jobs WHERE state = 'queued')
    AND NOT EXISTS (SELECT 1 FROM dray_jobs WHERE state = 'parked')
    AND NOT EXISTS (SELECT 1 FROM dray_jobs WHERE state = 'scheduled' AND run_at <= $now)

-- name: live_newest_times
-- When the newest of each kind of event happened, at most `limit` of each.
SELECT at FROM (SELECT finished_at AS at FROM dray_jobs WHERE state = 'completed' AND finished_at IS NOT NULL
    ORDER BY finished_at DESC LIMIT :limit) AS a
UNION ALL SELECT at FROM (SELECT finished_at AS at FROM dray_jobs WHERE state = 'failed' AND finished_at IS NOT NULL
    ORDER BY finished_at DESC LIMIT :limit) AS b
UNION ALL SELECT at FROM (SELECT finished_at AS at FROM dray_jobs WHERE state = 'cancelled' AND finished_at IS NOT NULL
    ORDER BY finished_at DESC LIMIT :limit) AS c
UNION ALL SELECT at FROM (SELECT created_at AS at FROM dray_jobs ORDER BY id DESC LIMIT :limit) AS d
UNION ALL SELECT at FROM (SELECT started_at AS at FROM dray_jobs WHERE state = 'running' LIMIT :limit) AS e

-- name: live_newest_lines
-- When the newest captured lines were said.
SELECT at FROM dray_logs ORDER BY seq DESC LIMIT :limit

-- name: live_oldest_running
-- What has been running longest, among a bounded number of running jobs.
SELECT * FROM (SELECT $live_columns FROM dray_jobs AS j WHERE j.state = 'running' LIMIT :among) AS part
ORDER BY started_at, id LIMIT :limit

-- name: live_hands
-- How many jobs run, by queue and worker.
SELECT queue, worker_id, count(*) FROM (
    SELECT queue, worker_id FROM dray_jobs WHERE state = 'running' LIMIT :among
) AS part GROUP BY queue, worker_id

-- name: live_queues
-- Queues by name, paused ones first.
SELECT name, priority, paused_at, created_at FROM dray_queues ORDER BY paused_at IS NULL, $by_text(name) LIMIT :limit

-- name: live_queue_count
-- How many queues there are, counted up to a limit.
SELECT count(*) FROM (SELECT 1 FROM dray_queues LIMIT :limit) AS part

-- name: live_queues_like
-- Names of queues that contain a part.
SELECT name FROM dray_queues WHERE lower(name) LIKE :pattern ESCAPE '!' ORDER BY $by_text(name) LIMIT :limit

-- name: live_queues_named
-- Queues by name.
SELECT name, priority, paused_at, created_at FROM dray_queues WHERE name $in_texts(names)

-- name: live_depths_named
-- How much is ready in these queues, counted up to a limit.
SELECT part.value, (SELECT count(*) FROM (
    SELECT 1 FROM dray_jobs AS j WHERE j.state = 'queued' AND j.queue = part.value
    ORDER BY j.task, j.priority DESC, j.run_at, j.id LIMIT :limit
) AS ready) + (SELECT count(*) FROM (
    SELECT 1 FROM dray_jobs AS j WHERE j.state = 'parked' AND j.queue = part.value
    ORDER BY j.task, j.priority DESC, j.key, j.run_at, j.id LIMIT :limit
) AS in_turn)
FROM $texts(names) AS part

-- name: live_depths
-- The queues that have anything ready, found by hopping along the indexes, and how much, counted up to a limit. In the
-- order of an index: otherwise the planner may count rows of the whole table.
WITH RECURSIVE found (n, name) AS (
    SELECT 1, (SELECT min(queue) FROM dray_jobs WHERE state = 'queued')
    UNION ALL
    SELECT found.n + 1, (SELECT min(j.queue) FROM dray_jobs AS j WHERE j.state = 'queued' AND j.queue > found.name)
    FROM found WHERE found.name IS NOT NULL AND found.n < :queues
), keyed (n, name) AS (
    SELECT 1, (SELECT min(queue) FROM dray_jobs WHERE state = 'parked')
    UNION ALL
    SELECT keyed.n + 1, (SELECT min(j.queue) FROM dray_jobs AS j WHERE j.state = 'parked' AND j.queue > keyed.name)
    FROM keyed WHERE keyed.name IS NOT NULL AND keyed.n < :queues
)
SELECT name, (SELECT count(*) FROM (
    SELECT 1 FROM dray_jobs AS j WHERE j.state = 'queued' AND j.queue = part.name
    ORDER BY j.task, j.priority DESC, j.run_at, j.id LIMIT :limit
) AS ready) + (SELECT count(*) FROM (
    SELECT 1 FROM dray_jobs AS j WHERE j.state = 'parked' AND j.queue = part.name
    ORDER BY j.task, j.priority DESC, j.key, j.run_at, j.id LIMIT :limit
) AS in_turn)
FROM (
    SELECT name FROM (SELECT name FROM found UNION SELECT name FROM keyed) AS names WHERE name IS NOT NULL LIMIT :queues
) AS part

-- name: live_heads
-- The first ready job of each queue, task and priority, hop by hop along the index: among them is the oldest of each
-- queue that has no key. Of those with keys the oldest of a number.
WITH RECURSIVE head (n, id) AS (
    SELECT 1, (SELECT j.id FROM dray_jobs AS j WHERE j.state = 'queued'
        ORDER BY j.queue, j.task, j.priority DESC, j.run_at, j.id LIMIT 1)
    UNION ALL
    SELECT head.n + 1, coalesce(
        (SELECT j.id FROM dray_jobs AS j WHERE j.state = 'queued' AND j.queue = h.queue AND j.task = h.task
            AND j.priority < h.priority ORDER BY j.priority DESC, j.run_at, j.id LIMIT 1),
        (SELECT j.id FROM dray_jobs AS j WHERE j.state = 'queued' AND j.queue = h.queue AND j.task > h.task
            ORDER BY j.task, j.priority DESC, j.run_at, j.id LIMIT 1),
        (SELECT j.id FROM dray_jobs AS j WHERE j.state = 'queued' AND j.queue > h.queue
            ORDER BY j.queue, j.task, j.priority DESC, j.run_at, j.id LIMIT 1))
    FROM head JOIN dray_jobs AS h ON h.id = head.id WHERE head.n < :limit
), keyed (n, name) AS (
    SELECT 1, (SELECT min(queue) FROM dray_jobs WHERE state = 'parked')
    UNION ALL
    SELECT keyed.n + 1, (SELECT min(j.queue) FROM dray_jobs AS j WHERE j.state = 'parked' AND j.queue > keyed.name)
    FROM keyed WHERE keyed.name IS NOT NULL AND keyed.n < :limit
)
SELECT j.queue, min(j.run_at) FROM head JOIN dray_jobs AS j ON j.id = head.id GROUP BY j.queue
UNION ALL
SELECT keyed.name, (SELECT min(first.run_at) FROM (
    SELECT j.run_at FROM dray_jobs AS j WHERE j.state = 'parked' AND j.queue = keyed.name
    ORDER BY j.task, j.priority DESC, j.key, j.run_at, j.id LIMIT :limit
) AS first)
FROM keyed WHERE keyed.name IS NOT NULL

-- name: live_counts
-- How many jobs are in each state but queued and running, counted up to a limit, in the order of an index.
SELECT 'waiting', (SELECT count(*) FROM (
    SELECT 1 FROM dray_jobs WHERE state = 'waiting' ORDER BY id LIMIT :limit) AS t)
UNION ALL
SELECT 'scheduled', (SELECT count(*) FROM (
    SELECT 1 FROM dray_jobs WHERE state = 'scheduled' ORDER BY run_at LIMIT :limit) AS t)
UNION ALL
SELECT 'completed', (SELECT count(*) FROM (
    SELECT 1 FROM dray_jobs WHERE state = 'completed' AND finished_at IS NOT NULL ORDER BY finished_at LIMIT :limit) AS t)
UNION ALL
SELECT 'failed', (SELECT count(*) FROM (
    SELECT 1 FROM dray_jobs WHERE state = 'failed' AND finished_at IS NOT NULL ORDER BY finished_at LIMIT :limit) AS t)
UNION ALL
SELECT 'cancelled', (SELECT count(*) FROM (
    SELECT 1 FROM dray_jobs WHERE state = 'cancelled' AND finished_at IS NOT NULL ORDER BY finished_at LIMIT :limit) AS t)

-- name: live_rate
-- How many of the newest jobs that ended in a state did so since an instant, and when the first of them did.
SELECT count(*), min(finished_at) FROM (
    SELECT finished_at FROM dray_jobs
    WHERE state = :state AND finished_at IS NOT NULL AND finished_at >= $at(since)
    ORDER BY finished_at DESC LIMIT :limit
) AS newest

-- name: live_rate_enqueued
-- How many of the newest jobs have ids since an instant.
SELECT count(*) FROM (SELECT 1 FROM dray_jobs WHERE id > :after_id ORDER BY id DESC LIMIT :limit) AS newest

-- name: pulse_jobs
-- What changes when jobs come, become ready or end: the newest id, the newest ends, counts up to a limit.
SELECT (SELECT id FROM dray_jobs ORDER BY id DESC LIMIT 1),
    (SELECT max(finished_at) FROM dray_jobs WHERE state = 'completed' AND finished_at IS NOT NULL),
    (SELECT max(finished_at) FROM dray_jobs WHERE state = 'failed' AND finished_at IS NOT NULL),
    (SELECT max(finished_at) FROM dray_jobs WHERE state = 'cancelled' AND finished_at IS NOT NULL),
    (SELECT count(*) FROM (SELECT 1 FROM dray_jobs WHERE state = 'waiting' ORDER BY id LIMIT :limit) AS t),
    (SELECT count(*) FROM (SELECT 1 FROM dray_jobs WHERE state = 'scheduled' ORDER BY run_at LIMIT :limit) AS t),
    (SELECT min(run_at) FROM dray_jobs WHERE state = 'scheduled')

-- name: pulse_ready
-- What changes when jobs become ready or are taken, counted up to a limit.
SELECT count(*), (SELECT count(*) FROM (
    SELECT 1 FROM dray_jobs WHERE state = 'parked' ORDER BY queue, task, priority DESC, key, run_at, id LIMIT :limit
) AS in_turn) FROM (
    SELECT 1 FROM dray_jobs WHERE state = 'queued' ORDER BY queue, task, priority DESC, run_at, id LIMIT :limit
) AS ready

-- name: pulse_running
-- What changes when jobs start, report progress, are asked to stop or end, among a bounded number of running jobs.
SELECT count(*), sum(claim), max(started_at), max(updated_at), count(cancel_requested_at) FROM (
    SELECT claim, started_at, updated_at, cancel_requested_at FROM dray_jobs WHERE state = 'running' LIMIT :limit
) AS running

-- name: pulse_queues
-- What changes when a queue is made, paused or resumed.
SELECT count(*), max(created_at), max(paused_at), count(paused_at), sum(priority) FROM (
    SELECT created_at, paused_at, priority FROM dray_queues LIMIT :limit
) AS part

-- name: pulse_workers
-- What changes when a worker starts, ends, cannot work, or takes a duty; a beat changes nothing here.
SELECT count(*), max(started_at), max(stopped_at), count(stopped_at), sum(CASE WHEN state = 'draining' THEN 1 ELSE 0 END),
    max(trouble), (SELECT sum(term) FROM dray_leases), (SELECT count(holder) FROM dray_leases)
FROM (
    SELECT state, started_at, stopped_at, trouble FROM dray_workers ORDER BY id DESC LIMIT :limit
) AS part

-- name: pulse_schedules
-- What changes when a schedule is declared, fires, is paused, resumed or removed.
SELECT count(*), max(updated_at), max(last_at), max(next_at), max(paused_at), count(paused_at) FROM (
    SELECT updated_at, last_at, next_at, paused_at FROM dray_schedules LIMIT :limit
) AS part

-- name: pulse_newest
-- The newest workflow and the newest captured line.
SELECT (SELECT id FROM dray_workflows ORDER BY id DESC LIMIT 1), (SELECT max(seq) FROM dray_logs)

-- name: pulse_actions
-- What changes when a person acts, while a bulk action goes on and when it ends: the newest actions.
SELECT id, done, refused, note IS NULL FROM dray_actions ORDER BY id DESC LIMIT :limit
