-- name: fence_hold
-- One row if a claim still holds its job. A transaction that is going to write sees everything there is.
SELECT FALSE FROM dray_jobs WHERE id = :id AND worker_id = :worker_id AND claim = :claim AND state = 'running'
