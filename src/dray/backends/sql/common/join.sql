-- name: fence_look
-- One row if a claim holds its job at this moment.
SELECT 1 FROM dray_jobs WHERE id = :id AND worker_id = :worker_id AND claim = :claim AND state = 'running'

-- name: fanout_suspect
-- Has a job's children looked for once more, by a transaction that sees them all.
UPDATE dray_jobs SET fanout_pending = TRUE WHERE id = :id
