-- name: table_names
-- The tables there are, without the one that says what they are.
SELECT substr(relname, 6) FROM pg_class
WHERE relkind = 'r' AND relname LIKE 'dray\_%' AND oid <> CAST('dray_meta' AS regclass)
    AND relnamespace = (SELECT m.relnamespace FROM pg_class AS m WHERE m.oid = CAST('dray_meta' AS regclass))
ORDER BY relname

-- name: table_columns
-- The columns of a table, in their order, and their types.
SELECT CAST(a.attname AS text), CAST(t.typname AS text) FROM pg_attribute AS a JOIN pg_type AS t ON t.oid = a.atttypid
WHERE a.attrelid = CAST('dray_{table}' AS regclass) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum

-- name: table_append
-- Writes rows whose keys are not there yet.
COPY dray_{table} ({columns}) FROM STDIN (FORMAT binary)

-- name: table_mend
-- Writes rows over those that have their keys.
INSERT INTO dray_{table} ({columns}) OVERRIDING SYSTEM VALUE
SELECT {columns} FROM json_populate_recordset(CAST(NULL AS dray_{table}), CAST(:rows AS json))
ON CONFLICT ({key}) DO UPDATE SET {assignments}

-- name: table_clear
-- Removes all rows of a table.
TRUNCATE dray_{table} CASCADE

-- name: close_patience
-- How long to wait for those who have a table in an open transaction, before it can be closed.
SELECT set_config('lock_timeout', :milliseconds, TRUE)

-- name: close_function
-- What refuses changes of a table that is closed, but for transactions that carry the pass. A transaction whose
-- snapshot is older than that does not see why.
CREATE OR REPLACE FUNCTION dray_closed() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS '
BEGIN
    IF NOT EXISTS (SELECT 1 FROM dray_meta WHERE name = ''pass'') THEN
        RAISE EXCEPTION USING ERRCODE = ''DRAY1'', MESSAGE =
            coalesce((SELECT value FROM dray_meta WHERE name = ''closed''), ''is closed for a move'');
    END IF;
    RETURN NULL;
END'

-- name: table_close
-- Has every change of a table refused.
CREATE TRIGGER closed BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON dray_{table}
FOR EACH STATEMENT EXECUTE FUNCTION dray_closed()

-- name: table_open
-- Lets a table be changed again.
DROP TRIGGER IF EXISTS closed ON dray_{table}

-- name: open_function
-- Forgets what refused changes.
DROP FUNCTION IF EXISTS dray_closed()

-- name: log_number
-- Has log lines to come numbered after those that were carried here.
SELECT setval(pg_get_serial_sequence('dray_logs', 'seq'), max(seq)) FROM dray_logs HAVING max(seq) IS NOT NULL

-- name: table_analyze
-- Tells the planner what the tables hold now.
ANALYZE dray_{table}
