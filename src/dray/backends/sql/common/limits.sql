-- name: limit_rules
-- The rules in force for one queue and some tasks.
SELECT scope, name, kind, most, period_us FROM dray_limits
WHERE in_force AND ((scope = 'queue' AND name = :queue) OR (scope = 'task' AND name $in_texts(tasks)))

-- name: line_tasks
-- The tasks that have jobs ready in one queue, by hopping along the indexes; 1: jobs with keys.
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
SELECT task, 0 FROM plain WHERE task IS NOT NULL UNION ALL SELECT task, 1 FROM keyed WHERE task IS NOT NULL

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
-- What has started under a rate of a task or a queue within its period, oldest first. What lies further ahead than a
-- period was written before the clock was set back.
SELECT at, n FROM dray_starts
WHERE scope = :scope AND name = :name AND key = '' AND period_us = :period_us
    AND at > $now - $span(period_us) AND at <= $now + $span(period_us)
ORDER BY at

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

-- name: limit_hold_task
-- From now on the running jobs of a task count.
UPDATE dray_jobs SET held = TRUE WHERE state = 'running' AND task = :name AND NOT held

-- name: limit_hold_queue
-- From now on the running jobs of a queue count.
UPDATE dray_jobs SET held = TRUE WHERE state = 'running' AND queue = :name AND NOT held

-- name: limit_strangers
-- Workers that live and know nothing of limits.
SELECT name FROM dray_workers WHERE state IN ('active', 'draining') AND knows IS NULL ORDER BY name LIMIT 3
