-- name: audit_payloads
-- What does not hold of arguments and results, which are in the jobs' rows here.
SELECT 'arguments', id FROM dray_jobs
WHERE id > :after AND id <= :until AND state IN ('waiting', 'scheduled', 'queued', 'parked', 'running') AND args IS NULL

-- name: check_indexes
-- Dray's indexes, and whether the server uses each: one that was cut off while it was made is there and worth nothing.
SELECT c.relname, CAST(c.oid AS bigint), i.indisvalid AND i.indisready
FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid JOIN pg_class AS t ON t.oid = i.indrelid
WHERE t.relname LIKE 'dray~_%' ESCAPE '~' AND t.relnamespace = CAST(:namespace AS oid) ORDER BY c.relname

-- name: check_constraints
-- Constraints that rows may break, because those that were there before were never looked at.
SELECT t.relname, k.conname FROM pg_constraint AS k JOIN pg_class AS t ON t.oid = k.conrelid
WHERE t.relname LIKE 'dray~_%' ESCAPE '~' AND t.relnamespace = CAST(:namespace AS oid) AND NOT k.convalidated
ORDER BY t.relname, k.conname

-- name: check_names
-- What is there of Dray's.
SELECT c.relname FROM pg_class AS c
WHERE c.relname LIKE 'dray~_%' ESCAPE '~' AND c.relnamespace = CAST(:namespace AS oid)

-- name: check_extension
-- The schema of the extension that looks into indexes, where it is installed.
SELECT n.nspname FROM pg_extension AS e JOIN pg_namespace AS n ON n.oid = e.extnamespace WHERE e.extname = 'amcheck'

-- name: table_namespace
-- The schema that Dray's tables are found in.
SELECT CAST(n.oid AS bigint), n.nspname FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.oid = CAST(CAST(:table AS regclass) AS oid)
