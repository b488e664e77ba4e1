-- name: schedule_upsert
-- Creates a schedule or changes its rule; an unchanged one is not written. last_at and created_at stay.
INSERT INTO dray_schedules (name, task, queue, args, cron, every_us, tz, misfire, misfire_limit, overlap,
    priority, next_at, created_at, updated_at)
VALUES (:name, :task, :queue, :args, :cron, :every_us, :tz, :misfire, :misfire_limit, :overlap,
    :priority, $at(next_at), $at(created_at), $now)
ON CONFLICT (name) DO UPDATE SET task = excluded.task, queue = excluded.queue, args = excluded.args,
    cron = excluded.cron, every_us = excluded.every_us, tz = excluded.tz, misfire = excluded.misfire,
    misfire_limit = excluded.misfire_limit, overlap = excluded.overlap, priority = excluded.priority,
    next_at = excluded.next_at, updated_at = excluded.updated_at
WHERE (dray_schedules.task, coalesce(dray_schedules.queue, ''), dray_schedules.args, coalesce(dray_schedules.cron, ''),
        coalesce(dray_schedules.every_us, 0), dray_schedules.tz, dray_schedules.misfire,
        dray_schedules.misfire_limit, dray_schedules.overlap, coalesce(CAST(dray_schedules.priority AS text), ''))
    <> (excluded.task, coalesce(excluded.queue, ''), excluded.args, coalesce(excluded.cron, ''),
        coalesce(excluded.every_us, 0), excluded.tz, excluded.misfire, excluded.misfire_limit, excluded.overlap,
        coalesce(CAST(excluded.priority AS text), ''))

-- name: schedule_change
-- Changes what people set of a schedule, if it is still as it was read.
UPDATE dray_schedules SET task = :task, queue = :queue, args = :args, cron = :cron, every_us = :every_us, tz = :tz,
    misfire = :misfire, misfire_limit = :misfire_limit, overlap = :overlap, priority = :priority,
    next_at = $at(next_at), updated_at = $now
WHERE name = :name AND updated_at = $at(read_at)
    AND (next_at = $at(expected_at) OR (next_at IS NULL AND $at(expected_at) IS NULL))

-- name: schedule_get
-- One schedule by name.
SELECT $schedule_columns FROM dray_schedules WHERE name = :name

-- name: schedule_list
-- All schedules by name.
SELECT $schedule_columns FROM dray_schedules ORDER BY $by_text(name)

-- name: schedule_due
-- The schedules whose time has come.
SELECT $schedule_columns FROM dray_schedules WHERE next_at IS NOT NULL AND paused_at IS NULL AND next_at <= $now
ORDER BY next_at LIMIT :limit

-- name: schedule_upcoming
-- When the earliest schedule is due, and what the time is.
SELECT (SELECT min(next_at) FROM dray_schedules WHERE next_at IS NOT NULL AND paused_at IS NULL), $now

-- name: schedule_advance
-- Moves a schedule to its next slot, if no other worker has, or has edited it since, and it is not paused: the winner
-- enqueues.
UPDATE dray_schedules SET next_at = $at(next_at), last_at = coalesce($at(last_at), last_at)
WHERE name = :name AND next_at = $at(expected_at) AND updated_at = $at(read_at) AND paused_at IS NULL

-- name: schedule_busy
-- Whether a job of this schedule is in one of these states.
SELECT EXISTS (SELECT 1 FROM dray_jobs WHERE schedule = :name AND schedule IS NOT NULL
    AND state IN ('waiting', 'scheduled', 'queued', 'parked', 'running') AND $shown_state(dray_jobs) $in_texts(states))

-- name: schedule_pause
-- Pauses a schedule.
UPDATE dray_schedules SET paused_at = $now WHERE name = :name AND paused_at IS NULL

-- name: schedule_resume
-- Lets a paused schedule go on from a slot in the future.
UPDATE dray_schedules SET paused_at = NULL, next_at = $at(next_at) WHERE name = :name AND paused_at IS NOT NULL

-- name: schedule_delete
-- Forgets a schedule; its jobs stay.
DELETE FROM dray_schedules WHERE name = :name
