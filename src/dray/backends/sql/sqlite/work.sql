-- name: job_insert
-- rows: id, task, queue, priority, run_at, delay_us, state, args, max_attempts, max_crashes, timeout, expires_at, expires_us, unique_key, unique_us, unique_scope, workflow_id, step, waiting_on, on_parent_failure, schedule, slot, name, description, tags, headers, retry, keep_us, key
-- One new job; one whose id or unique lock is there already is not written.
INSERT INTO dray_jobs (id, task, queue, state, reason, priority, run_at, args, max_attempts, max_crashes, timeout,
    expires_at, unique_key, unique_lock, unique_until, unique_scope, workflow_id, step, waiting_on,
    on_parent_failure, schedule, slot, name, description, tags, headers, retry, keep_us, key, created_at,
    updated_at, finished_at)
VALUES (:id, :task, :queue,
    coalesce(:state, CASE WHEN coalesce(:run_at, :now + :delay_us) > :now THEN 'scheduled'
        WHEN :key IS NULL THEN 'queued' ELSE 'parked' END),
    CASE WHEN :state = 'cancelled' THEN 'parent' END,
    coalesce(:priority, (SELECT priority FROM dray_queues WHERE name = :queue), 0),
    coalesce(:run_at, :now + :delay_us), :args, :max_attempts, :max_crashes, :timeout,
    coalesce(:expires_at, :now + :expires_us), :unique_key,
    CASE WHEN :state = 'cancelled' THEN NULL ELSE :unique_key END,
    :now + :unique_us, :unique_scope, :workflow_id, :step, :waiting_on,
    :on_parent_failure, :schedule, :slot, :name, :description, :tags, :headers, :retry, :keep_us, :key, :now, :now,
    CASE WHEN :state = 'cancelled' THEN :now END)
ON CONFLICT DO NOTHING

-- name: job_insert_plain
-- rows: id, task, queue, state, priority, run_at, args, max_attempts, max_crashes, timeout, expires_at, name, description, tags, headers, retry, keep_us, key
-- One new job that no other job decides about.
INSERT INTO dray_jobs (id, task, queue, state, priority, run_at, args, max_attempts, max_crashes, timeout, expires_at,
    name, description, tags, headers, retry, keep_us, key, created_at, updated_at)
VALUES (:id, :task, :queue, :state, coalesce(:priority, (SELECT priority FROM dray_queues WHERE name = :queue), 0),
    :run_at, :args, :max_attempts, :max_crashes, :timeout, :expires_at, :name, :description, :tags, :headers, :retry,
    :keep_us, :key, :now, :now)
ON CONFLICT DO NOTHING

-- name: job_insert_alike
-- Such jobs that differ in nothing but their ids and arguments, which come as one JSON object: half the time of a
-- statement for each.
INSERT INTO dray_jobs (id, task, queue, state, priority, run_at, args, max_attempts, max_crashes, timeout, expires_at,
    name, description, tags, headers, retry, keep_us, key, created_at, updated_at)
SELECT r.key, :task, :queue, :state, coalesce(:priority, (SELECT priority FROM dray_queues WHERE name = :queue), 0),
    :run_at, r.value, :max_attempts, :max_crashes, :timeout, :expires_at, :name, :description, :tags, :headers, :retry,
    :keep_us, :key, :now, :now
FROM json_each(:args_by_id) AS r WHERE TRUE
ON CONFLICT DO NOTHING

-- name: payload_args
-- rows: id, args
-- Arguments too large for the job's row.
INSERT INTO dray_payloads (job_id, args) SELECT id, :args FROM dray_jobs WHERE id = :id
ON CONFLICT DO NOTHING

-- name: payload_set_args
-- rows: id, args
-- Other arguments, too large for the job's row.
INSERT INTO dray_payloads (job_id, args) VALUES (:id, :args)
ON CONFLICT (job_id) DO UPDATE SET args = excluded.args

-- name: payload_result
-- rows: id, result
-- A result too large for the job's row.
INSERT INTO dray_payloads (job_id, result) VALUES (:id, :result)
ON CONFLICT (job_id) DO UPDATE SET result = excluded.result

-- name: payload_drop_args
-- rows: id
-- Forgets the large arguments of a job that keeps none.
UPDATE dray_payloads SET args = NULL WHERE job_id = :id

-- name: payload_drop_result
-- Forgets the large results of jobs that run again.
UPDATE dray_payloads SET result = NULL WHERE job_id $in_ids(ids)

-- name: ready_ids
-- The ids of the next jobs of one task in one queue, in order, off the index.
SELECT count(*), json_group_array(id) FROM (
    SELECT id FROM dray_jobs WHERE state = 'queued' AND queue = :queue AND task = :task
    ORDER BY priority DESC, run_at, id LIMIT :limit
)

-- name: ready_pick
-- The same jobs, each behind what the order goes by, to be merged with those of other tasks.
SELECT json_group_array(json_array(-priority, run_at, id)) FROM (
    SELECT priority, run_at, id FROM dray_jobs WHERE state = 'queued' AND queue = :queue AND task = :task
    ORDER BY priority DESC, run_at, id LIMIT :limit
)

-- name: ready_tasks
-- The tasks that have jobs ready in one queue, found by hopping along the index.
WITH RECURSIVE present (task) AS (
    SELECT min(task) FROM dray_jobs WHERE state = 'queued' AND queue = :queue
    UNION ALL
    SELECT (SELECT min(j.task) FROM dray_jobs AS j
        WHERE j.state = 'queued' AND j.queue = :queue AND j.task > present.task)
    FROM present WHERE present.task IS NOT NULL
)
SELECT task FROM present WHERE task IS NOT NULL

-- name: tend_due
-- Whether anything has expired, and whether anything is due.
SELECT EXISTS (SELECT 1 FROM dray_jobs
        WHERE expires_at IS NOT NULL AND state IN ('waiting', 'scheduled', 'queued', 'parked') AND expires_at <= :now),
    EXISTS (SELECT 1 FROM dray_jobs WHERE state = 'scheduled' AND run_at <= :now)

-- name: claim_allowed
-- Whether this queue may be claimed from by this worker, the one not paused, the other not declared dead; and whether
-- it has limits or keys.
SELECT EXISTS (SELECT 1 FROM dray_workers WHERE id = :worker_id AND state IN ('active', 'draining'))
    AND NOT EXISTS (SELECT 1 FROM dray_queues WHERE name = :queue AND paused_at IS NOT NULL),
    $gated(:queue)

-- name: claim_few
-- Takes the next jobs of one task in one queue, and returns them: what `claim_allowed`, `ready_ids`, `job_claim` and
-- `job_claimed` do, in one statement. Takes none where there are limits or keys.
UPDATE dray_jobs SET
    state = 'running', worker_id = :worker_id, claim = claim + 1, attempt = attempt + 1,
    started_at = :now, updated_at = :now,
    unique_lock = CASE WHEN unique_scope = 'queued' THEN NULL ELSE unique_lock END
WHERE rowid IN (
        SELECT rowid FROM dray_jobs WHERE state = 'queued' AND queue = :queue AND task = :task
        ORDER BY priority DESC, run_at, id LIMIT :limit)
    AND (expires_at IS NULL OR expires_at > :now)
    AND EXISTS (SELECT 1 FROM dray_workers WHERE id = :worker_id AND state IN ('active', 'draining'))
    AND NOT EXISTS (SELECT 1 FROM dray_queues WHERE name = :queue AND paused_at IS NOT NULL)
    AND NOT $gated(:queue)
RETURNING id, claim, task, queue, args, attempt, max_attempts, crashes, max_crashes, timeout, priority, run_at,
    workflow_id, headers, retry

-- name: job_newest
-- A number that grows with every new job.
SELECT coalesce(max(rowid), 0) FROM dray_jobs

-- name: job_claim
-- Takes jobs: the attempt is counted here, so that a job which kills its worker cannot loop for ever.
UPDATE dray_jobs SET
    state = 'running', worker_id = :worker_id, claim = claim + 1, attempt = attempt + 1,
    started_at = :now, updated_at = :now,
    unique_lock = CASE WHEN unique_scope = 'queued' THEN NULL ELSE unique_lock END
FROM json_each(:ids) AS given
WHERE dray_jobs.id = given.value AND state = 'queued'
    AND (expires_at IS NULL OR expires_at > :now)
    AND (given.key < :limit OR (attempt + 1 < max_attempts AND crashes = 0))

-- name: job_claimed
-- The jobs among these that this worker has just taken, in their order, as one text: read row by row, each row would
-- be a moment at which the engine waits for the GIL. Large arguments are not in it: a text has a limit.
SELECT json_group_array(json_array(j.id, j.claim, j.task, j.queue, j.args, j.attempt, j.max_attempts, j.crashes,
    j.max_crashes, CAST(j.timeout AS text), j.priority, j.run_at, j.workflow_id, j.headers, j.retry))
FROM json_each(:ids) AS given CROSS JOIN dray_jobs AS j ON j.id = given.value
WHERE j.state = 'running' AND +j.worker_id = :worker_id

-- name: payload_read
-- The large arguments of jobs.
SELECT job_id, args FROM dray_payloads WHERE job_id $in_ids(ids)

-- name: job_complete
-- The happy end of attempts. Each is an array of id, claim, result, whether the arguments go, and the two ages.
UPDATE dray_jobs SET
    state = 'completed', finished_at = :now - given.finished_age_us, started_at = :now - given.started_age_us,
    updated_at = :now, result = given.result, error = NULL, error_key = NULL, held = FALSE,
    args = CASE WHEN given.drops_args THEN NULL ELSE args END,
    unique_lock = CASE WHEN unique_until > :now THEN unique_lock END
FROM (
    SELECT json_extract(value, '$[0]') AS id, json_extract(value, '$[1]') AS claim,
        json_extract(value, '$[2]') AS result, json_extract(value, '$[3]') AS drops_args,
        json_extract(value, '$[4]') AS started_age_us, json_extract(value, '$[5]') AS finished_age_us
    FROM json_each(:endings)
) AS given
WHERE dray_jobs.id = given.id AND +worker_id = :worker_id AND dray_jobs.claim = given.claim AND state = 'running'

-- name: edges_open
-- Whether any job waits for another. INDEXED BY: otherwise all edges are read, those of ended jobs too.
SELECT EXISTS (SELECT 1 FROM dray_edges INDEXED BY dray_edges_open WHERE satisfied = 0)

-- name: job_settle
-- rows: id, worker_id, claim, state, final, reason, delay_us, gives_back, crash, error, error_key, keeps_error, started_age_us, finished_age_us, key
-- Any other end of an attempt; a job put back or rescued ends as cancelled(user) where a cancel was requested.
UPDATE dray_jobs SET
    state = CASE WHEN NOT (:final AND NOT :crash) AND cancel_requested_at IS NOT NULL THEN 'cancelled'
        WHEN :state = 'queued' AND coalesce(:key, key) IS NOT NULL THEN 'parked' ELSE :state END,
    reason = CASE WHEN NOT (:final AND NOT :crash) AND cancel_requested_at IS NOT NULL THEN 'user'
        WHEN :final THEN :reason END,
    run_at = CASE WHEN :final OR :delay_us IS NULL THEN run_at ELSE :now + :delay_us END,
    attempt = attempt - :gives_back, crashes = crashes + :crash, updated_at = :now, held = FALSE,
    key = coalesce(:key, key),
    error = CASE WHEN :keeps_error THEN error ELSE :error END,
    error_key = CASE WHEN NOT :crash OR cancel_requested_at IS NULL THEN :error_key END,
    worker_id = CASE WHEN :final OR cancel_requested_at IS NOT NULL THEN worker_id END,
    started_at = CASE WHEN :final OR cancel_requested_at IS NOT NULL
        THEN coalesce(:now - :started_age_us, started_at) END,
    finished_at = CASE WHEN :final OR cancel_requested_at IS NOT NULL THEN :now - :finished_age_us END,
    unique_lock = CASE WHEN (:final OR cancel_requested_at IS NOT NULL)
        AND (unique_until IS NULL OR unique_until <= :now) THEN NULL ELSE unique_lock END,
    progress = CASE WHEN :final THEN progress END,
    progress_message = CASE WHEN :final THEN progress_message END
WHERE id = :id AND worker_id = :worker_id AND claim = :claim AND state = 'running'

-- name: settled_cancelled
-- Which of the jobs that were put back or rescued ended as cancelled instead.
SELECT id FROM dray_jobs WHERE id IN (SELECT value FROM json_each(:ids)) AND state = 'cancelled'

-- name: attempt_insert
-- rows: id, worker_id, claim, outcome, error_type, error_message, traceback, error_class, started_age_us, finished_age_us
-- The record of an attempt that is about to be settled.
INSERT INTO dray_attempts (job_id, claim, attempt, worker_id, outcome, error_type, error_message, traceback,
    started_at, finished_at, error_class)
SELECT id, claim, attempt, worker_id, :outcome, :error_type, :error_message, :traceback,
    coalesce(:now - :started_age_us, started_at), :now - :finished_age_us, :error_class
FROM dray_jobs WHERE id = :id AND worker_id = :worker_id AND claim = :claim AND state = 'running'
ON CONFLICT DO NOTHING

-- name: meta_table
-- One row if Dray's tables are there.
SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'dray_meta'

-- name: job_look
-- What a worker should know before it claims: in one statement, because that is what it costs.
WITH RECURSIVE present (queue, task) AS (
    SELECT q.value, (SELECT min(j.task) FROM dray_jobs AS j WHERE j.state = 'queued' AND j.queue = q.value)
    FROM json_each(:queues) AS q
    WHERE NOT EXISTS (SELECT 1 FROM dray_queues WHERE name = q.value AND paused_at IS NOT NULL) AND NOT $gated(q.value)
    UNION ALL
    SELECT present.queue, (SELECT min(j.task) FROM dray_jobs AS j
        WHERE j.state = 'queued' AND j.queue = present.queue AND j.task > present.task)
    FROM present WHERE present.task IS NOT NULL
),
found (name) AS (
    SELECT min(queue) FROM dray_jobs WHERE state = 'queued' AND :all
    UNION ALL
    SELECT (SELECT min(j.queue) FROM dray_jobs AS j WHERE j.state = 'queued' AND j.queue > found.name)
    FROM found WHERE found.name IS NOT NULL
),
keyed (name) AS (
    SELECT min(queue) FROM dray_jobs WHERE state = 'parked' AND :all
    UNION ALL
    SELECT (SELECT min(j.queue) FROM dray_jobs AS j WHERE j.state = 'parked' AND j.queue > keyed.name)
    FROM keyed WHERE keyed.name IS NOT NULL
)
SELECT
    :limit > 0 AND EXISTS (SELECT 1 FROM present WHERE task IN (SELECT value FROM json_each(:tasks))),
    (SELECT min(run_at) FROM dray_jobs WHERE state = 'scheduled'),
    $now,
    (SELECT json_group_array(name) FROM (SELECT name FROM found UNION SELECT name FROM keyed) WHERE name IS NOT NULL),
    (
        SELECT json_group_array(json_array(id, claim)) FROM dray_jobs
        WHERE worker_id = :id AND state = 'running' AND cancel_requested_at IS NOT NULL
    ),
    (
        SELECT json_group_array(json_array(s.id, s.job_id, s.claim)) FROM
            (SELECT id, job_id, claim FROM dray_stacks WHERE worker_id = :id AND answered_at IS NULL LIMIT 10) AS s
    ),
    CASE WHEN :limit > 0 THEN (
        SELECT json_group_array(q.value) FROM json_each(:queues) AS q
        WHERE NOT EXISTS (SELECT 1 FROM dray_queues WHERE name = q.value AND paused_at IS NOT NULL) AND $gated(q.value)
    ) END

-- name: transaction_number
-- No transaction is run again here: the answer to a COMMIT cannot be lost.
SELECT NULL

-- name: transaction_committed
-- Never asked.
SELECT CAST(:number AS text) IS NOT NULL
