-- Searches read in windows: each statement looks at the jobs between two places in the order of an index, and returns
-- those that fit, newest first; where an index holds few, all of them. What is asked for may be so rare that the whole table would be read for one page.

-- name: search_newest
-- The newest job, and now.
SELECT (SELECT id FROM dray_jobs ORDER BY id DESC LIMIT 1), $now

-- name: search_enqueued
-- Jobs that fit between two ids.
SELECT j.id, j.finished_at FROM dray_jobs AS j
WHERE j.id < :before AND j.id >= :first AND $sought
ORDER BY j.id DESC LIMIT :limit

-- name: search_enqueued_end
-- How many jobs the next window has, and where it ends.
SELECT count(*), min($by_text(last)) FROM (
    SELECT CAST(j.id AS text) AS last FROM dray_jobs AS j WHERE j.id < :before ORDER BY j.id DESC LIMIT :window
) AS w

-- name: search_schedule
-- Jobs of a schedule that fit between two ids.
SELECT j.id, j.finished_at FROM dray_jobs AS j
WHERE j.schedule = :of AND j.id < :before AND j.id >= :first AND $sought
ORDER BY j.id DESC LIMIT :limit

-- name: search_schedule_end
-- How many jobs the next window has, and where it ends.
SELECT count(*), min($by_text(last)) FROM (
    SELECT CAST(j.id AS text) AS last FROM dray_jobs AS j WHERE j.schedule = :of AND j.id < :before
    ORDER BY j.id DESC LIMIT :window
) AS w

-- name: search_ended
-- Jobs of one final state that fit and ended between two moments. Many may have ended at the same: a transaction ends
-- hundreds.
SELECT j.id, j.finished_at FROM dray_jobs AS j
WHERE j.state = :of AND j.finished_at IS NOT NULL
    AND j.finished_at <= $at(before_at) AND j.finished_at >= $at(first_at)
    AND (j.finished_at < $at(before_at) OR j.id < :before) AND $sought
ORDER BY j.finished_at DESC, j.id DESC LIMIT :limit

-- name: search_ended_end
-- How many jobs the next window has, and where it ends.
SELECT count(*), min(w.finished_at) FROM (
    SELECT finished_at FROM dray_jobs WHERE state = :of AND finished_at IS NOT NULL AND finished_at <= $at(before_at)
    ORDER BY finished_at DESC LIMIT :window
) AS w

-- name: search_key
-- Jobs that failed alike, and fit, between two moments.
SELECT j.id, j.finished_at FROM dray_jobs AS j
WHERE j.error_key = :of AND j.finished_at <= $at(before_at) AND j.finished_at >= $at(first_at)
    AND (j.finished_at < $at(before_at) OR j.id < :before) AND $sought
ORDER BY j.finished_at DESC, j.id DESC LIMIT :limit

-- name: search_key_end
-- How many jobs the next window has, and where it ends.
SELECT count(*), min(w.finished_at) FROM (
    SELECT finished_at FROM dray_jobs WHERE error_key = :of AND finished_at <= $at(before_at)
    ORDER BY finished_at DESC LIMIT :window
) AS w

-- name: search_live_count
-- How many jobs are in these live states, counted no further than is asked.
SELECT count(*) FROM (
    SELECT 1 FROM (SELECT 1 FROM dray_jobs WHERE CAST(:waiting AS integer) = 1 AND state = 'waiting' LIMIT :limit) AS a
    UNION ALL
    SELECT 1 FROM (SELECT 1 FROM dray_jobs
        WHERE CAST(:scheduled AS integer) = 1 AND state = 'scheduled' LIMIT :limit) AS b
    UNION ALL
    SELECT 1 FROM (SELECT 1 FROM dray_jobs WHERE CAST(:queued AS integer) = 1 AND state = 'queued' LIMIT :limit) AS c
    UNION ALL
    SELECT 1 FROM (SELECT 1 FROM dray_jobs WHERE CAST(:queued AS integer) = 1 AND state = 'parked' LIMIT :limit) AS p
    UNION ALL
    SELECT 1 FROM (SELECT 1 FROM dray_jobs WHERE CAST(:running AS integer) = 1 AND state = 'running' LIMIT :limit) AS d
) AS few

-- name: search_live
-- Jobs in live states that fit, where there are few of these: they are read through the indexes of their states.
WITH picked AS MATERIALIZED (
    SELECT id FROM dray_jobs WHERE CAST(:waiting AS integer) = 1 AND state = 'waiting'
    UNION ALL
    SELECT id FROM dray_jobs WHERE CAST(:scheduled AS integer) = 1 AND state = 'scheduled'
    UNION ALL
    SELECT id FROM dray_jobs WHERE CAST(:queued AS integer) = 1 AND state = 'queued'
    UNION ALL
    SELECT id FROM dray_jobs WHERE CAST(:queued AS integer) = 1 AND state = 'parked'
    UNION ALL
    SELECT id FROM dray_jobs WHERE CAST(:running AS integer) = 1 AND state = 'running'
)
SELECT j.id, j.finished_at FROM dray_jobs AS j WHERE j.id $in_picked AND $sought

-- name: search_args
-- The arguments of jobs, as they are stored.
SELECT j.id, j.task, $stored_args FROM dray_jobs AS j WHERE j.id $in_ids(ids)

-- name: search_runs_named
-- The newest workflows of these names.
SELECT id FROM dray_workflows WHERE name $in_texts(names) ORDER BY id DESC LIMIT :limit

-- name: search_runs_count
-- How many jobs these workflows have, counted no further than is asked.
SELECT count(*) FROM (SELECT 1 FROM dray_jobs WHERE workflow_id $in_ids(ids) LIMIT :limit) AS few

-- name: search_runs
-- Jobs of workflows that fit, where these have few.
WITH picked AS MATERIALIZED (SELECT id FROM dray_jobs WHERE workflow_id $in_ids(ids))
SELECT j.id, j.finished_at FROM dray_jobs AS j WHERE j.id $in_picked AND $sought

-- name: search_ids
-- Those of some jobs that fit.
SELECT j.id, j.finished_at FROM dray_jobs AS j WHERE j.id $in_ids(ids) AND $sought
