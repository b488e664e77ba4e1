-- name: stack_ask
-- Asks where the body of a job is, if the job still runs under this claim.
INSERT INTO dray_stacks (id, job_id, claim, worker_id, asked_at)
SELECT :stack_id, id, claim, worker_id, $now FROM dray_jobs WHERE id = :id AND claim = :claim AND state = 'running'

-- name: stack_read
-- The stack, once it is there.
SELECT stack FROM dray_stacks WHERE id = :id

-- name: stack_answer
-- Where a body is, from the worker that was asked; the first one counts.
UPDATE dray_stacks SET stack = :stack, answered_at = $now
WHERE id = :id AND worker_id = :worker_id AND answered_at IS NULL

-- name: stack_drop
-- Forgets a request and its stack.
DELETE FROM dray_stacks WHERE id = :id

-- name: stack_prune
-- Forgets questions whose askers went away without taking them back. Reads all there are: they are few.
DELETE FROM dray_stacks WHERE id IN (SELECT id FROM dray_stacks WHERE asked_at < $at(before) LIMIT :limit)
