-- name: worker_live
-- Live workers, how much of their lease is left, and for how long they have not been seen: negative if the server's
-- clock was set back since. Who could not renew it because the server was down has one whole lease from the server's
-- start on; not where a test sets the clock, nor where the start lies in the future, for the same reason.
SELECT CAST(id AS text), boot, lock, lease_until, CAST(extract(epoch FROM (
    CASE WHEN CAST(:steady AS bigint) IS NULL AND pg_postmaster_start_time() <= $steady
        THEN greatest(lease_until, pg_postmaster_start_time() + (lease_until - last_seen_at))
        ELSE lease_until END - $steady)) * 1000000 AS bigint),
    CAST(extract(epoch FROM $now - last_seen_at) * 1000000 AS bigint)
FROM dray_workers WHERE state IN ('active', 'draining') ORDER BY id

-- name: worker_locks
-- The second halves of the advisory locks by which workers of this database prove that they live.
SELECT CAST(objid AS bigint) FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 2
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND classid = CAST(CAST(:space AS bigint) AS oid)

-- name: worker_bury
-- rows: worker_id, lease_until, space, key
-- Declares a worker dead: it did not renew its lease since it was judged, and that lease is over, or was given by a
-- clock that was set back since; the server has been up for as long as that lease; and no session of its own holds its
-- advisory lock, which would prove it alive.
UPDATE dray_workers SET state = 'dead', stopped_at = $now
WHERE id = :worker_id AND lease_until = $at(lease_until) AND (lease_until < $steady OR last_seen_at > $now)
    AND (CAST(:steady AS bigint) IS NOT NULL OR pg_postmaster_start_time() > $steady
        OR pg_postmaster_start_time() + (lease_until - last_seen_at) < $steady)
    AND state IN ('active', 'draining')
    AND NOT EXISTS (SELECT 1 FROM pg_locks AS l WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 2
        AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
        AND l.classid = CAST(CAST(:space AS bigint) AS oid) AND l.objid = CAST(CAST(:key AS bigint) AS oid))
