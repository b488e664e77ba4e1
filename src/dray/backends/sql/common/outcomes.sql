-- name: outcome_leave
-- rows: id, worker_id, claim, outcome
-- How a body ended whose job another transaction has locked; only while its claim holds.
INSERT INTO dray_outcomes (job_id, claim, worker_id, left_at, outcome)
SELECT j.id, j.claim, j.worker_id, $now, CAST(:outcome AS text) FROM dray_jobs AS j
WHERE j.id = :id AND j.worker_id = :worker_id AND j.claim = :claim AND j.state = 'running'
-- A job that was deleted and enqueued again under its id counts its claims from the first: what was left of the old
-- one gives way.
ON CONFLICT (job_id, claim) DO UPDATE
SET worker_id = excluded.worker_id, left_at = excluded.left_at, outcome = excluded.outcome
WHERE dray_outcomes.worker_id <> excluded.worker_id

-- name: outcome_find
-- What was left of the bodies of these jobs, and when, the time now, and their tasks; only of the claims they are under now.
SELECT o.job_id, o.claim, o.worker_id, o.outcome, o.left_at, $now, j.task
FROM dray_outcomes AS o JOIN dray_jobs AS j ON j.id = o.job_id AND j.claim = o.claim AND j.worker_id = o.worker_id
WHERE o.job_id $in_ids(ids)

-- name: outcome_forget
-- Removes what was left of claims that have ended. Reads all there are: they are few.
DELETE FROM dray_outcomes WHERE NOT EXISTS (
    SELECT 1 FROM dray_jobs AS j WHERE j.id = dray_outcomes.job_id AND j.claim = dray_outcomes.claim
        AND j.worker_id = dray_outcomes.worker_id AND j.state = 'running'
)
