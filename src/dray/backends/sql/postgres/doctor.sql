-- name: doctor_server
-- The server's time, version and role, what commits wait for by default, and its connections: how many there may be for
-- ordinary users, how many there are, and how many of them are Dray's.
SELECT clock_timestamp(), CAST(current_setting('server_version_num') AS bigint), current_setting('server_version'),
    pg_is_in_recovery(), current_setting('fsync'),
    (SELECT reset_val FROM pg_settings WHERE name = 'synchronous_commit'),
    current_setting('full_page_writes'), current_setting('autovacuum'),
    CAST(current_setting('max_connections') AS bigint)
        - CAST(current_setting('superuser_reserved_connections') AS bigint),
    (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'),
    (SELECT count(*) FROM pg_stat_activity WHERE application_name IN ('dray', 'dray listen'))

-- name: doctor_vacuum
-- Rows of the largest table that are live and dead, by the server's statistics, and when it was last vacuumed.
SELECT n_live_tup, n_dead_tup, greatest(last_vacuum, last_autovacuum)
FROM pg_stat_user_tables WHERE relid = to_regclass('dray_jobs')

-- name: doctor_integrity
-- Indexes that the server does not use, because making them was cut off.
SELECT c.relname FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid
WHERE i.indrelid = ANY (ARRAY[to_regclass('dray_jobs'), to_regclass('dray_attempts'), to_regclass('dray_edges'),
        to_regclass('dray_logs'), to_regclass('dray_schedules'), to_regclass('dray_workflows'),
        to_regclass('dray_queues'), to_regclass('dray_workers'), to_regclass('dray_leases')])
    AND NOT i.indisvalid ORDER BY c.relname

-- name: doctor_transaction
-- The oldest transaction that is open in this database, other than this one: its process, since when, in which state.
SELECT pid, xact_start, state, application_name FROM pg_stat_activity
WHERE datname = current_database() AND xact_start IS NOT NULL AND pid <> pg_backend_pid()
    AND backend_type = 'client backend' ORDER BY xact_start LIMIT 1
