-- name: table_read
-- The rows of a table between two keys, in the order of the key.
SELECT {columns} FROM dray_{table} WHERE ({order}) > ({after}) AND ({order}) <= ({upto}) ORDER BY {order}

-- name: table_count
-- How many rows a table has.
SELECT count(*) FROM dray_{table}

-- name: table_remove
-- rows: {key}
-- Removes rows by their keys.
DELETE FROM dray_{table} WHERE {match}

-- name: job_states
-- How many jobs are in which state.
SELECT $shown_state(j), count(*) FROM dray_jobs AS j GROUP BY 1 ORDER BY 1

-- name: job_running
-- How many jobs run.
SELECT count(*) FROM dray_jobs WHERE state = 'running'

-- name: unique_release
-- Takes unique locks from the jobs that have them, for those that have them in the source.
UPDATE dray_jobs SET unique_lock = NULL WHERE unique_lock $in_texts(locks)

-- name: meta_add
-- Notes a fact about the tables, unless one of that name is there.
INSERT INTO dray_meta (name, value) VALUES (:name, :value) ON CONFLICT (name) DO NOTHING

-- name: meta_swap
-- Changes a fact about the tables, if it is still what it was.
UPDATE dray_meta SET value = :value WHERE name = :name AND value = :old

-- name: meta_drop_same
-- Forgets a fact about the tables, if it is still what it was.
DELETE FROM dray_meta WHERE name = :name AND value = :old

-- name: meta_drop
-- Forgets a fact about the tables.
DELETE FROM dray_meta WHERE name = :name
