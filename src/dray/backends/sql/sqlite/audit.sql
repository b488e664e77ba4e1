-- name: audit_payloads
-- What does not hold of arguments and results, in the jobs' rows and beside them; the id is the job's.
SELECT 'arguments', j.id FROM dray_jobs AS j
WHERE j.id > :after AND j.id <= :until AND j.state IN ('waiting', 'scheduled', 'queued', 'parked', 'running') AND j.args IS NULL
    AND NOT EXISTS (SELECT 1 FROM dray_payloads AS p WHERE p.job_id = j.id AND p.args IS NOT NULL)
UNION ALL
SELECT 'payload', p.job_id FROM dray_payloads AS p LEFT JOIN dray_jobs AS j ON j.id = p.job_id
WHERE p.job_id > :after AND p.job_id <= :until
    AND (j.id IS NULL OR (j.args IS NOT NULL AND p.args IS NOT NULL)
        OR (p.result IS NOT NULL AND (j.result IS NOT NULL OR j.state <> 'completed')))

-- name: copy_counts
-- How many rows the tables have: a copy has as many, jobs first.
SELECT (SELECT count(*) FROM dray_jobs), (SELECT count(*) FROM dray_attempts), (SELECT count(*) FROM dray_edges),
    (SELECT count(*) FROM dray_logs), (SELECT count(*) FROM dray_payloads), (SELECT count(*) FROM dray_workflows),
    (SELECT count(*) FROM dray_schedules), (SELECT count(*) FROM dray_queues), (SELECT count(*) FROM dray_workers)

-- name: check_quick
-- What is wrong with the file, without comparing indexes with their tables.
SELECT quick_check FROM pragma_quick_check(100) WHERE quick_check <> 'ok'

-- name: check_full
-- What is wrong with the file.
SELECT integrity_check FROM pragma_integrity_check(100) WHERE integrity_check <> 'ok'

-- name: check_references
-- Tables with rows that refer to rows which are not there, and how many.
SELECT m.name, count(*) FROM sqlite_master AS m CROSS JOIN pragma_foreign_key_check(m.name) AS f
WHERE m.type = 'table' AND m.name LIKE 'dray~_%' ESCAPE '~' GROUP BY m.name

-- name: check_names
-- What is there of Dray's.
SELECT name FROM sqlite_master WHERE name LIKE 'dray~_%' ESCAPE '~'
