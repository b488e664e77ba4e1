-- name: audit_payloads
-- What does not hold of arguments and results, in the jobs' rows and beside them; the id is the job's.
SELECT 'arguments', j.id FROM dray_jobs AS j
WHERE j.id > :after AND j.id <= :until AND j.state IN ('waiting', 'scheduled', 'queued', 'running') AND j.args IS NULL
    AND NOT EXISTS (SELECT 1 FROM dray_payloads AS p WHERE p.job_id = j.id AND p.args IS NOT NULL)
UNION ALL
SELECT 'payload', p.job_id FROM dray_payloads AS p LEFT JOIN dray_jobs AS j ON j.id = p.job_id
WHERE p.job_id > :after AND p.job_id <= :until
    AND (j.id IS NULL OR (j.args IS NOT NULL AND p.args IS NOT NULL)
        OR (p.result IS NOT NULL AND (j.result IS NOT NULL OR j.state <> 'completed')))
