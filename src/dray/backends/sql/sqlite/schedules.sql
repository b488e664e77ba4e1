-- name: schedule_busy
-- As for all databases, but with the index named: the one of all jobs of a schedule fits as well, and SQLite took it and
-- read every job that has ended.
SELECT EXISTS (SELECT 1 FROM dray_jobs INDEXED BY dray_jobs_live_schedule WHERE schedule = :name AND schedule IS NOT NULL
    AND state IN ('waiting', 'scheduled', 'queued', 'parked', 'running') AND $shown_state(dray_jobs) $in_texts(states))
