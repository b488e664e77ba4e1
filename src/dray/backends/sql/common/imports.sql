-- name: job_adopt
-- rows: id, state, reason, attempt, claim, created_at, started_at, finished_at, error, error_key, result, progress, keeps_args
-- Gives a job that was written just now what it had become in another queue; without a state it is still to run.
UPDATE dray_jobs SET
    state = coalesce(CAST(:state AS text), state), reason = CAST(:reason AS text), attempt = :attempt, claim = :claim,
    created_at = $at(created_at), started_at = $at(started_at), finished_at = $at(finished_at),
    error = CAST(:error AS text), error_key = CAST(:error_key AS text), result = CAST(:result AS text),
    progress = CAST(:progress AS double precision), args = CASE WHEN :keeps_args THEN args END
WHERE id = :id

-- name: attempt_adopt
-- rows: job_id, claim, attempt, outcome, error_type, error_message, traceback, started_at, finished_at
-- The record of an attempt that was made in another queue.
INSERT INTO dray_attempts (job_id, claim, attempt, outcome, error_type, error_message, traceback, started_at, finished_at)
VALUES (:job_id, :claim, :attempt, :outcome, :error_type, :error_message, :traceback, $at(started_at), $at(finished_at))

-- name: log_adopt
-- rows: job_id, claim, at, level, logger, message
-- A log line that was captured in another queue.
INSERT INTO dray_logs (job_id, claim, at, level, logger, message)
VALUES (:job_id, :claim, $at(at), :level, :logger, :message)
