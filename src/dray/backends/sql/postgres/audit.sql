-- name: audit_payloads
-- What does not hold of arguments and results, which are in the jobs' rows here.
SELECT 'arguments', id FROM dray_jobs
WHERE id > :after AND id <= :until AND state IN ('waiting', 'scheduled', 'queued', 'running') AND args IS NULL
