-- name: failure_keys
-- The groups of failures, found by hopping along the index, and when the newest of each happened.
WITH RECURSIVE found (n, error_key) AS (
    SELECT 1, (SELECT min(error_key) FROM dray_jobs WHERE error_key IS NOT NULL)
    UNION ALL
    SELECT found.n + 1, (SELECT min(j.error_key) FROM dray_jobs AS j WHERE j.error_key > found.error_key)
    FROM found WHERE found.error_key IS NOT NULL AND found.n < :limit
)
SELECT found.error_key, (SELECT max(j.finished_at) FROM dray_jobs AS j WHERE j.error_key = found.error_key)
FROM found WHERE found.error_key IS NOT NULL

-- name: failure_newest_keys
-- The groups of the newest failures, and when the newest of each happened.
SELECT error_key, max(finished_at) FROM (
    SELECT error_key, finished_at FROM dray_jobs WHERE state = 'failed' AND finished_at IS NOT NULL
    ORDER BY finished_at DESC LIMIT :limit
) AS newest WHERE error_key IS NOT NULL GROUP BY error_key

-- name: failure_newest
-- The newest failure of a group.
SELECT id, task, error, finished_at FROM dray_jobs WHERE error_key = :key AND finished_at IS NOT NULL
ORDER BY finished_at DESC LIMIT 1

-- name: failure_first
-- When the first failure of a group that is still kept happened.
SELECT min(finished_at) FROM dray_jobs WHERE error_key = :key AND finished_at IS NOT NULL

-- name: failure_counts
-- The newest failures of a group, counted by the step of a chart that they are in; before its first: -1.
SELECT step, count(*) FROM (
    SELECT CASE WHEN at < chart_at THEN -1 ELSE $microseconds(at - chart_at) / CAST(:step AS bigint) END AS step FROM (
        SELECT finished_at AS at, $at(chart) AS chart_at FROM dray_jobs
        WHERE error_key = :key AND finished_at >= $at(since)
        ORDER BY finished_at DESC LIMIT :limit
    ) AS newest
) AS placed GROUP BY step

-- name: failure_unkeyed
-- Jobs that failed in a stretch of time and have no key: workers of an earlier release wrote them.
SELECT id, claim, task, error, finished_at FROM dray_jobs
WHERE state = 'failed' AND finished_at >= $at(since) AND finished_at < $at(until) AND error_key IS NULL
ORDER BY finished_at LIMIT :limit

-- name: failure_key_set
-- rows: id, claim, error_key
-- Gives a failed job its key, if it has not run since.
UPDATE dray_jobs SET error_key = :error_key
WHERE id = :id AND claim = :claim AND state = 'failed' AND error_key IS NULL

-- name: failure_key_clear
-- Takes the keys of jobs that ended otherwise in a stretch of time: an earlier release started them over, and left the
-- key of their failure.
UPDATE dray_jobs SET error_key = NULL
WHERE state IN ('completed', 'cancelled') AND finished_at >= $at(since) AND finished_at < $at(until)
    AND error_key IS NOT NULL
