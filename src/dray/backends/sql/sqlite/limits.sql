-- name: starts_add
-- Notes what has started under a rate, at the end of the slice of its period.
INSERT INTO dray_starts (scope, name, key, period_us, at, n)
VALUES (:scope, :name, :key, :period_us, (:now / max(1, :period_us / 100) + 1) * max(1, :period_us / 100), :n)
ON CONFLICT (scope, name, key, period_us, at) DO UPDATE SET n = n + excluded.n

-- name: gate_claim
-- Takes jobs by their ids, some of which count for limits. As `job_claim` otherwise.
UPDATE dray_jobs SET
    state = 'running', worker_id = :worker_id, claim = claim + 1, attempt = attempt + 1,
    started_at = :now, updated_at = :now, held = dray_jobs.id $in_ids(held),
    unique_lock = CASE WHEN unique_scope = 'queued' THEN NULL ELSE unique_lock END
FROM json_each(:ids) AS given
WHERE dray_jobs.id = given.value AND state IN ('queued', 'parked')
    AND (expires_at IS NULL OR expires_at > :now)
    AND (given.key < :limit OR (attempt + 1 < max_attempts AND crashes = 0))

-- name: gate_claimed
-- As `job_claimed`, with keys.
SELECT json_group_array(json_array(j.id, j.claim, j.task, j.queue, j.args, j.attempt, j.max_attempts, j.crashes,
    j.max_crashes, CAST(j.timeout AS text), j.priority, j.run_at, j.workflow_id, j.headers, j.retry, j.key, j.held))
FROM json_each(:ids) AS given CROSS JOIN dray_jobs AS j ON j.id = given.value
WHERE j.state = 'running' AND +j.worker_id = :worker_id
