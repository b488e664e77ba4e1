-- name: join_identity
-- Which database on which run of which server this is, and which table of jobs a session finds there.
SELECT current_database(), CAST(extract(epoch FROM pg_postmaster_start_time()) * 1000000 AS bigint),
    CAST(CAST(to_regclass(:table) AS oid) AS bigint)

-- name: join_is_committed
-- One row if a table that another session finds is there for this one too.
SELECT 1 FROM pg_catalog.pg_class WHERE oid = CAST(:table AS oid)

-- name: join_schema
-- The schema in which this session makes its tables, and what it was told of where to look for them.
SELECT current_schema(), current_setting('search_path')

-- name: join_search_path
-- Where the rest of this transaction looks for tables.
SELECT set_config('search_path', :path, TRUE)

-- name: join_is_forgetful
-- Whether a commit of this session may be forgotten by a crash.
SELECT current_setting('synchronous_commit') = 'off'

-- name: join_notify
-- Wakes the listeners, when and if the user's transaction commits; the same note twice is sent once.
SELECT pg_notify(:channel, value) FROM json_array_elements_text(CAST(:notes AS json))

-- name: fence_hold
-- One row if a claim still holds its job: the job's row is ours then, after waiting for the transaction that has it.
-- It tells whether this transaction's snapshot may be too old to show who waits for the job.
SELECT current_setting('transaction_isolation') <> 'read committed' FROM dray_jobs
WHERE id = :id AND worker_id = :worker_id AND claim = :claim AND state = 'running' FOR NO KEY UPDATE
