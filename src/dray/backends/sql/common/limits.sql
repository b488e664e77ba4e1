-- name: limit_rules
-- The rules in force for one queue and some tasks.
SELECT scope, name, kind, most, period_us FROM dray_limits
WHERE in_force AND ((scope = 'queue' AND name = :queue) OR (scope = 'task' AND name $in_texts(tasks)))

-- name: line_tasks
-- The tasks that have jobs ready in one queue, by hopping along the indexes; 1: jobs with keys, and their highest priority.
-- For a worker that begins here also the key of the job that started last, of the newest that have ended.
WITH RECURSIVE plain (task) AS (
    SELECT min(task) FROM dray_jobs WHERE state = 'queued' AND queue = :queue
    UNION ALL
    SELECT (SELECT min(j.task) FROM dray_jobs AS j
        WHERE j.state = 'queued' AND j.queue = :queue AND j.task > plain.task)
    FROM plain WHERE plain.task IS NOT NULL
), keyed (task) AS (
    SELECT min(task) FROM dray_jobs WHERE state = 'parked' AND queue = :queue
    UNION ALL
    SELECT (SELECT min(j.task) FROM dray_jobs AS j
        WHERE j.state = 'parked' AND j.queue = :queue AND j.task > keyed.task)
    FROM keyed WHERE keyed.task IS NOT NULL
)
SELECT task, 0, NULL, NULL FROM plain WHERE task IS NOT NULL
UNION ALL
SELECT keyed.task, 1, (SELECT j.priority FROM dray_jobs AS j
    WHERE j.state = 'parked' AND j.queue = :queue AND j.task = keyed.task ORDER BY j.priority DESC LIMIT 1),
    CASE WHEN :begins THEN (SELECT e.key FROM (
        SELECT j.queue, j.task, j.key, j.started_at FROM dray_jobs AS j
        WHERE j.state = 'completed' AND j.finished_at IS NOT NULL ORDER BY j.finished_at DESC LIMIT 500
    ) AS e WHERE e.queue = :queue AND e.task = keyed.task AND e.key IS NOT NULL ORDER BY e.started_at DESC LIMIT 1) END
FROM keyed WHERE keyed.task IS NOT NULL

-- name: line_plain
-- The next jobs without a key of one task in one queue.
SELECT priority, run_at, id FROM dray_jobs WHERE state = 'queued' AND queue = :queue AND task = :task
ORDER BY priority DESC, run_at, id LIMIT :limit

-- name: turn_level
-- The next lower priority at which jobs of one task with keys are ready in one queue.
SELECT priority FROM dray_jobs
WHERE state = 'parked' AND queue = :queue AND task = :task AND priority < :below
ORDER BY priority DESC LIMIT 1

-- name: turn_more
-- The first jobs of one key.
SELECT run_at, id FROM dray_jobs
WHERE state = 'parked' AND queue = :queue AND task = :task AND priority = :priority AND key = :key
ORDER BY run_at, id LIMIT :limit

-- name: key_rooms
-- How many more jobs of these keys may start now, by the rules of one task and of one queue.
SELECT k.value, $key_room(task, k.value), $key_room(queue, k.value) FROM $texts(keys) AS k

-- name: held_counts
-- How many jobs run that limits count, by task and queue.
SELECT h.task, h.queue, count(*) FROM dray_jobs AS h WHERE h.held AND $is_running(h) GROUP BY h.task, h.queue

-- name: starts_list
-- What has started under a rate of a task or a queue within its period, oldest first; with an empty key, of all jobs
-- together. What lies further ahead than a period was written before the clock was set back.
SELECT at, n FROM dray_starts
WHERE scope = :scope AND name = :name AND key = :key AND period_us = :period_us
    AND at > $now - $span(period_us) AND at <= $now + $span(period_us)
ORDER BY at

-- name: starts_began
-- When running jobs were claimed.
SELECT id, started_at FROM dray_jobs WHERE id $in_ids(ids) AND started_at IS NOT NULL

-- name: starts_lower
-- rows: scope, name, period_us, began_at, n
-- Gives back starts, of several that were noted together. Of the first slice after the claim: it may have more in it,
-- but none that a rate would forget later.
UPDATE dray_starts SET n = n - :n
WHERE scope = :scope AND name = :name AND key = '' AND period_us = :period_us AND n > :n
    AND at = (SELECT min(s.at) FROM dray_starts AS s
        WHERE s.scope = :scope AND s.name = :name AND s.key = '' AND s.period_us = :period_us AND s.at > $at(began_at)
            AND $at(began_at) > $now - $span(period_us) AND s.at <= $now + $span(period_us))

-- name: starts_remove
-- rows: scope, name, period_us, began_at, n
-- Gives back starts, all that were noted together.
DELETE FROM dray_starts
WHERE scope = :scope AND name = :name AND key = '' AND period_us = :period_us AND n = :n
    AND at = (SELECT min(s.at) FROM dray_starts AS s
        WHERE s.scope = :scope AND s.name = :name AND s.key = '' AND s.period_us = :period_us AND s.at > $at(began_at)
            AND $at(began_at) > $now - $span(period_us) AND s.at <= $now + $span(period_us))

-- name: starts_over
-- Starts that no rate looks at any more.
SELECT scope, name, key, period_us, at FROM dray_starts
WHERE at <= $now - $span_of(period_us) OR at > $now + 2 * $span_of(period_us) LIMIT :limit

-- name: starts_drop
-- rows: scope, name, key, period_us, at
-- Forgets starts of one slice.
DELETE FROM dray_starts
WHERE scope = :scope AND name = :name AND key = :key AND period_us = :period_us AND at = $at(at)

-- name: limit_list
-- All rules.
SELECT scope, name, kind, source, period_us, most, in_force, changed_at FROM dray_limits
ORDER BY scope, $by_text(name), kind, source, period_us

-- name: limit_of
-- The rules of one task or queue.
SELECT scope, name, kind, source, period_us, most, in_force, changed_at FROM dray_limits
WHERE scope = :scope AND name = :name ORDER BY kind, source, period_us

-- name: limit_drop
-- Removes the rules of one task or queue.
DELETE FROM dray_limits WHERE scope = :scope AND name = :name

-- name: limit_insert
-- rows: scope, name, kind, source, period_us, most, in_force, changed_at
-- One rule.
INSERT INTO dray_limits (scope, name, kind, source, period_us, most, in_force, changed_at)
VALUES (:scope, :name, :kind, :source, :period_us, :most, :in_force, coalesce($at(changed_at), $now))

-- name: limit_ahead
-- Whether jobs of a task or a queue are in the hands of workers and do not count: they may be standbys.
SELECT 1 FROM dray_jobs WHERE state = 'running' AND NOT held
    AND CASE CAST(:scope AS text) WHEN 'task' THEN task ELSE queue END = :name LIMIT 1

-- name: limit_hold_task
-- From now on the running jobs of a task count.
UPDATE dray_jobs SET held = TRUE WHERE state = 'running' AND task = :name AND NOT held

-- name: limit_hold_queue
-- From now on the running jobs of a queue count.
UPDATE dray_jobs SET held = TRUE WHERE state = 'running' AND queue = :name AND NOT held

-- name: limit_strangers
-- Workers that have not stopped and know nothing of limits.
SELECT id, name FROM dray_workers WHERE state IN ('active', 'draining') AND knows IS NULL ORDER BY name

-- name: park_look
-- Jobs with keys that stand among those without, as code of an earlier release leaves them. By their keys: SQLite would
-- read all that are queued.
SELECT id FROM dray_jobs WHERE state = 'queued' AND key IS NOT NULL AND key >= '' ORDER BY key LIMIT :limit

-- name: park
-- Lets such jobs take turns; returns their queues.
WITH picked AS MATERIALIZED (
    SELECT id FROM dray_jobs WHERE id $in_ids(ids) AND state = 'queued' AND key IS NOT NULL ORDER BY id $skip_locked
)
UPDATE dray_jobs SET state = 'parked' WHERE id $in_picked
RETURNING queue

-- name: limit_running
-- How many jobs run that limits count, and how many in all, by task and queue, among a bounded number of running jobs.
SELECT task, queue, count(CASE WHEN held THEN 1 END), count(*) FROM (
    SELECT task, queue, held FROM dray_jobs WHERE state = 'running' LIMIT :among
) AS part GROUP BY task, queue

-- name: limit_starts
-- What has started within the period of each rate that is in force; of keys it is not told.
SELECT l.scope, l.name, l.period_us, (SELECT coalesce(sum(s.n), 0) FROM dray_starts AS s
    WHERE s.scope = l.scope AND s.name = l.name AND s.key = '' AND s.period_us = l.period_us
        AND s.at > $now - $span_of(l.period_us) AND s.at <= $now + $span_of(l.period_us))
FROM dray_limits AS l WHERE l.kind = 'rate' AND l.in_force

-- name: limit_queues
-- The queues in which jobs of a task are ready, by hopping along the indexes. A count of at most one, and not EXISTS:
-- PostgreSQL might collect all jobs of the task; in the order of an index, or it might read the whole table for it.
WITH RECURSIVE plain (queue) AS (
    SELECT min(queue) FROM dray_jobs WHERE state = 'queued'
    UNION ALL
    SELECT (SELECT min(j.queue) FROM dray_jobs AS j WHERE j.state = 'queued' AND j.queue > plain.queue)
    FROM plain WHERE plain.queue IS NOT NULL
), keyed (queue) AS (
    SELECT min(queue) FROM dray_jobs WHERE state = 'parked'
    UNION ALL
    SELECT (SELECT min(j.queue) FROM dray_jobs AS j WHERE j.state = 'parked' AND j.queue > keyed.queue)
    FROM keyed WHERE keyed.queue IS NOT NULL
)
SELECT plain.queue FROM plain WHERE (SELECT count(*) FROM (SELECT 1 FROM dray_jobs AS j
    WHERE j.state = 'queued' AND j.queue = plain.queue AND j.task = :task ORDER BY j.priority DESC LIMIT 1) AS one) > 0
UNION
SELECT keyed.queue FROM keyed WHERE (SELECT count(*) FROM (SELECT 1 FROM dray_jobs AS j
    WHERE j.state = 'parked' AND j.queue = keyed.queue AND j.task = :task ORDER BY j.priority DESC LIMIT 1) AS one) > 0
