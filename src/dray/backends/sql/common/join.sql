-- name: fanout_suspect
-- Has a job's children looked for once more, by a transaction that sees them all.
UPDATE dray_jobs SET fanout_pending = TRUE WHERE id = :id
