-- name: table_names
-- The tables there are, without the one that says what they are.
SELECT substr(name, 6) FROM sqlite_master
WHERE type = 'table' AND name GLOB 'dray_*' AND name <> 'dray_meta' ORDER BY name

-- name: table_columns
-- The columns of a table, in their order.
SELECT name, lower(type) FROM pragma_table_info('dray_{table}') ORDER BY cid

-- name: table_mend
-- rows: {columns}
-- Writes rows over those that have their keys.
INSERT INTO dray_{table} ({columns}) VALUES ({values}) ON CONFLICT ({key}) DO UPDATE SET {assignments}

-- name: table_clear
-- Removes all rows of a table.
DELETE FROM dray_{table}

-- name: payload_between
-- Arguments and results that are kept beside the rows of jobs, between two ids.
SELECT job_id, args, result FROM dray_payloads WHERE job_id >= :since AND job_id <= :upto

-- name: payload_write
-- rows: job_id, args, result
-- Keeps arguments and results beside the row of a job.
INSERT INTO dray_payloads (job_id, args, result) VALUES (:job_id, :args, :result)
ON CONFLICT (job_id) DO UPDATE SET args = excluded.args, result = excluded.result

-- name: payload_remove
-- rows: job_id
-- Forgets arguments and results that were kept beside the row of a job.
DELETE FROM dray_payloads WHERE job_id = :job_id

-- name: table_close
-- Has every change of a table refused, but for transactions that carry the pass.
CREATE TRIGGER closed_{table}_{verb} BEFORE {verb} ON dray_{table}
WHEN NOT EXISTS (SELECT 1 FROM dray_meta WHERE name = 'pass')
BEGIN SELECT RAISE(ABORT, {sentence}); END

-- name: table_open
-- Lets a table be changed again.
DROP TRIGGER IF EXISTS closed_{table}_{verb}
