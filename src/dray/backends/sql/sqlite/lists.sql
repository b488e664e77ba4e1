-- name: list_count
-- How many jobs are in these states, counted no further than is asked; by the indexes alone.
SELECT count(*) FROM (
    SELECT 1 FROM (SELECT 1 FROM dray_jobs WHERE :waiting AND state = 'waiting' LIMIT :limit)
    UNION ALL
    SELECT 1 FROM (SELECT 1 FROM dray_jobs WHERE :scheduled AND state = 'scheduled' LIMIT :limit)
    UNION ALL
    SELECT 1 FROM (SELECT 1 FROM dray_jobs WHERE :queued AND state = 'queued' LIMIT :limit)
    UNION ALL
    SELECT 1 FROM (SELECT 1 FROM dray_jobs WHERE :queued AND state = 'parked' LIMIT :limit)
    UNION ALL
    SELECT 1 FROM (SELECT 1 FROM dray_jobs WHERE :running AND state = 'running' LIMIT :limit)
    UNION ALL
    SELECT 1 FROM (SELECT 1 FROM dray_jobs
        WHERE finished_at IS NOT NULL AND state IN (SELECT value FROM json_each(:final)) LIMIT :limit)
)

-- name: list_few
-- Jobs that fit, newest first, where those in these states are few: all of them are looked at and sorted.
SELECT $job_columns FROM $jobs WHERE j.rowid IN (
    SELECT j.rowid FROM dray_jobs AS j
    WHERE j.rowid IN (
            SELECT rowid FROM dray_jobs WHERE :waiting AND state = 'waiting'
            UNION ALL
            SELECT rowid FROM dray_jobs WHERE :scheduled AND state = 'scheduled'
            UNION ALL
            SELECT rowid FROM dray_jobs WHERE :queued AND state = 'queued'
            UNION ALL
            SELECT rowid FROM dray_jobs WHERE :queued AND state = 'parked'
            UNION ALL
            SELECT rowid FROM dray_jobs WHERE :running AND state = 'running'
            UNION ALL
            SELECT rowid FROM dray_jobs
            WHERE finished_at IS NOT NULL AND state IN (SELECT value FROM json_each(:final))
        )
        AND j.id < :before AND $fits
    ORDER BY +j.id DESC LIMIT :limit
)
ORDER BY +j.id DESC

-- name: list_failed
-- Jobs that failed or were cancelled and that fit, newest first.
SELECT $job_columns FROM $jobs
WHERE j.state IN ('failed', 'cancelled') AND j.id < :before AND $fits
ORDER BY j.id DESC LIMIT :limit

-- name: list_tagged
-- Jobs with tags that fit, newest first.
SELECT $job_columns FROM $jobs WHERE j.tags IS NOT NULL AND j.id < :before AND $fits ORDER BY j.id DESC LIMIT :limit

-- name: list_near
-- The id that is `limit` before another.
SELECT id FROM dray_jobs WHERE id < :before ORDER BY id DESC LIMIT 1 OFFSET :limit

-- name: list_far
-- Jobs that fit, newest first, where they are rare or far from the newest: the whole table is looked through in the
-- order that it lies in, which takes a third of the time that the order of ids does.
SELECT $job_columns FROM $jobs WHERE j.rowid IN (
    SELECT j.rowid FROM dray_jobs AS j NOT INDEXED WHERE $fits AND j.id < :before ORDER BY j.id DESC LIMIT :limit
)
ORDER BY +j.id DESC
