-- name: worker_live
-- Live workers, how much of their lease is left, by this boot's clock, whatever boot they are of, and for how long they
-- have not been seen.
SELECT id, boot, lock, lease_until, lease_until - :steady, :now - last_seen_at FROM dray_workers
WHERE state IN ('active', 'draining') ORDER BY id

-- name: worker_bury
-- rows: worker_id, lease_until
-- Declares a worker dead, unless it renewed its lease since it was judged.
UPDATE dray_workers SET state = 'dead', stopped_at = :now
WHERE id = :worker_id AND lease_until = :lease_until AND state IN ('active', 'draining')

-- name: checkpoint_holder
-- One row if a worker of this boot has the duty to checkpoint, and its lease has not run out.
SELECT 1 FROM dray_leases AS l JOIN dray_workers AS w ON w.id = l.holder
WHERE l.duty = 'checkpoint' AND w.state IN ('active', 'draining') AND w.boot = :boot AND w.lease_until > :steady
