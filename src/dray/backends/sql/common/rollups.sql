-- name: rollup_next
-- When the first job ended in a stretch of time.
SELECT min(at) FROM (
    SELECT min(finished_at) AS at FROM dray_jobs
    WHERE state = 'completed' AND finished_at >= $at(since) AND finished_at < $at(until)
    UNION ALL SELECT min(finished_at) FROM dray_jobs
    WHERE state = 'failed' AND finished_at >= $at(since) AND finished_at < $at(until)
    UNION ALL SELECT min(finished_at) FROM dray_jobs
    WHERE state = 'cancelled' AND finished_at >= $at(since) AND finished_at < $at(until)
) AS first

-- name: rollup_ended
-- How many jobs ended in a stretch of time, by queue, task, outcome and the classes of their times, and how many of
-- them have no error key although they failed, or have one and did not fail.
SELECT queue, task, state, waited, ran, count(*), sum(is_odd) FROM (
    SELECT queue, task, state, is_odd, $class(waited_us) AS waited, $class(ran_us) AS ran FROM (
        SELECT j.queue, j.task, j.state, $waited_us(j) AS waited_us,
            $microseconds(j.finished_at - j.started_at) AS ran_us,
            CASE WHEN (j.state = 'failed') = (j.error_key IS NULL) THEN 1 ELSE 0 END AS is_odd
        FROM dray_jobs AS j WHERE j.state IN ('completed', 'failed', 'cancelled')
            AND j.finished_at >= $at(since) AND j.finished_at < $at(until)
    ) AS timed
) AS classed
GROUP BY queue, task, state, waited, ran

-- name: rollup_newest
-- The newest jobs that ended in one state in a stretch of time, and their times.
SELECT j.queue, j.task, j.finished_at, $waited_us(j), $microseconds(j.finished_at - j.started_at) FROM dray_jobs AS j
WHERE j.state = :state AND j.finished_at >= $at(since) AND j.finished_at < $at(until)
ORDER BY j.finished_at DESC LIMIT :limit

-- name: rollup_count
-- How many jobs ended in one state in a stretch of time, counted up to a limit.
SELECT count(*) FROM (
    SELECT 1 FROM dray_jobs WHERE state = :state AND finished_at >= $at(since) AND finished_at < $at(until)
    ORDER BY finished_at LIMIT :limit
) AS part

-- name: rollup_list
-- All that is known of a stretch of time.
SELECT at, queue, task, outcome, jobs, waited, ran FROM dray_rollups
WHERE span = :span AND at >= $at(since) AND at < $at(until)

-- name: rollup_one
-- What is known of one queue and one task, or of the sums over all.
SELECT at, queue, task, outcome, jobs, waited, ran FROM dray_rollups
WHERE span = :span AND at $in_instants(ats) AND queue = :queue AND task = :task

-- name: rollup_queues
-- What is known of each queue.
SELECT at, queue, task, outcome, jobs, waited, ran FROM dray_rollups
WHERE span = :span AND at $in_instants(ats) AND task = :all AND queue <> :all
LIMIT :limit

-- name: rollup_tasks
-- What is known of each task.
SELECT at, queue, task, outcome, jobs, waited, ran FROM dray_rollups
WHERE span = :span AND at $in_instants(ats) AND queue = :all AND task <> :all
LIMIT :limit

-- name: rollup_put
-- rows: span, at, queue, task, outcome, jobs, waited, ran
-- One row, instead of the one that may be there.
INSERT INTO dray_rollups (span, at, queue, task, outcome, jobs, waited, ran)
VALUES (:span, $at(at), :queue, :task, :outcome, :jobs, :waited, :ran)
ON CONFLICT (span, at, queue, task, outcome)
DO UPDATE SET jobs = excluded.jobs, waited = excluded.waited, ran = excluded.ran

-- name: rollup_lock
-- Has others that write rollups wait for the end of this transaction.
SELECT value FROM dray_meta WHERE name = :name $for_update

-- name: rollup_oldest
-- Of when the oldest rows of a span are.
SELECT min(at) FROM dray_rollups WHERE span = :span

-- name: rollup_prune
-- Removes the rows of a stretch of time.
DELETE FROM dray_rollups WHERE span = :span AND at < $at(until)
