-- name: job_insert
-- rows: id, task, queue, priority, run_at, delay_us, state, args, max_attempts, max_crashes, timeout, expires_at, expires_us, unique_key, unique_us, unique_scope, workflow_id, step, waiting_on, on_parent_failure, schedule, slot, name, description, tags, headers, retry, keep_us, key
-- New jobs; one whose id or unique lock is there already is not written. In the order of the locks: two enqueues
-- that wait for each other's would deadlock.
INSERT INTO dray_jobs (id, task, queue, state, reason, priority, run_at, args, max_attempts, max_crashes, timeout,
    expires_at, unique_key, unique_lock, unique_until, unique_scope, workflow_id, step, waiting_on,
    on_parent_failure, schedule, slot, name, description, tags, headers, retry, keep_us, key, created_at,
    updated_at, finished_at)
SELECT r.id, r.task, r.queue,
    coalesce(r.state, CASE WHEN
        coalesce(timestamptz 'epoch' + r.run_at * interval '1 microsecond',
            $now + r.delay_us * interval '1 microsecond') > $now
        THEN 'scheduled' WHEN r.key IS NULL THEN 'queued' ELSE 'parked' END),
    CASE WHEN r.state = 'cancelled' THEN 'parent' END,
    coalesce(r.priority, q.priority, 0),
    coalesce(timestamptz 'epoch' + r.run_at * interval '1 microsecond', $now + r.delay_us * interval '1 microsecond'),
    r.args, r.max_attempts, r.max_crashes, r.timeout,
    coalesce(timestamptz 'epoch' + r.expires_at * interval '1 microsecond',
        $now + r.expires_us * interval '1 microsecond'),
    r.unique_key, CASE WHEN r.state = 'cancelled' THEN NULL ELSE r.unique_key END,
    $now + r.unique_us * interval '1 microsecond', r.unique_scope, r.workflow_id, r.step, r.waiting_on,
    r.on_parent_failure, r.schedule, timestamptz 'epoch' + r.slot * interval '1 microsecond',
    r.name, r.description, r.tags, r.headers, r.retry, r.keep_us, r.key, $now, $now,
    CASE WHEN r.state = 'cancelled' THEN $now END
FROM ROWS FROM (json_to_recordset(CAST(:rows AS json)) AS (id uuid, task text, queue text, priority integer,
    run_at bigint, delay_us bigint, state text, args text, max_attempts integer, max_crashes integer,
    timeout double precision, expires_at bigint, expires_us bigint, unique_key text, unique_us bigint,
    unique_scope text, workflow_id uuid, step text, waiting_on integer, on_parent_failure text, schedule text,
    slot bigint, name text, description text, tags text, headers text, retry text, keep_us bigint, key text)) WITH ORDINALITY
    AS r
LEFT JOIN dray_queues AS q ON r.priority IS NULL AND q.name = r.queue
ORDER BY r.unique_key, r.ordinality
ON CONFLICT DO NOTHING
RETURNING id

-- name: job_insert_plain
-- One new job that no other job decides about: what `job_insert` does, in a fifth less time.
INSERT INTO dray_jobs (id, task, queue, state, priority, run_at, args, max_attempts, max_crashes, timeout, expires_at,
    name, description, tags, headers, retry, keep_us, key, created_at, updated_at)
VALUES (:id, :task, :queue,
    CASE WHEN
        coalesce(timestamptz 'epoch' + CAST(:run_at AS bigint) * interval '1 microsecond',
            $now + CAST(:delay_us AS bigint) * interval '1 microsecond') > $now
        THEN 'scheduled' WHEN CAST(:key AS text) IS NULL THEN 'queued' ELSE 'parked' END,
    coalesce(CAST(:priority AS integer), (SELECT q.priority FROM dray_queues AS q WHERE q.name = :queue), 0),
    coalesce(timestamptz 'epoch' + CAST(:run_at AS bigint) * interval '1 microsecond',
        $now + CAST(:delay_us AS bigint) * interval '1 microsecond'),
    :args, :max_attempts, :max_crashes, :timeout,
    coalesce(timestamptz 'epoch' + CAST(:expires_at AS bigint) * interval '1 microsecond',
        $now + CAST(:expires_us AS bigint) * interval '1 microsecond'),
    :name, :description, :tags, :headers, :retry, :keep_us, :key, $now, $now)
ON CONFLICT DO NOTHING
RETURNING id

-- name: job_copy
-- Many plain new jobs at once.
COPY dray_jobs (id, task, queue, state, priority, run_at, args, max_attempts, max_crashes, timeout, expires_at, name,
    description, tags, headers, retry, keep_us, key, created_at, updated_at)
FROM STDIN

-- name: work_begin
-- First in a worker's transaction: whether its commit waits for the disk; a queue's pause waits for it. Returns whether
-- one of its queues has limits or keys.
SELECT CASE WHEN NOT :durable THEN set_config('synchronous_commit', 'off', TRUE) END, (
    SELECT count(pg_advisory_xact_lock_shared(:space, CAST(value AS integer))::text)
    FROM json_array_elements_text(CAST(:keys AS json))
), EXISTS (SELECT 1 FROM $texts(queues) AS q WHERE $gated(q.value))

-- name: pause_begin
-- First in a pause: waits for the claims under way, so that none commits after the pause has returned.
SELECT pg_advisory_xact_lock(:space, :key)

-- name: job_claim
-- Takes jobs: the attempt is counted here, so that a job which kills its worker cannot loop for ever. First how
-- many each queue and task has among the next jobs, then exactly that many are locked, whatever other workers lock.
-- Not those under a limit: `gate_claim` takes them.
WITH share AS MATERIALIZED (
    SELECT queue, task, count(*) AS n, count(*) FILTER (WHERE place <= :limit) AS now FROM (
        SELECT q.value AS queue, t.value AS task,
            row_number() OVER (ORDER BY q.ordinality, r.priority DESC, r.run_at, r.id) AS place
        FROM json_array_elements_text(CAST(:queues AS json)) WITH ORDINALITY AS q
        CROSS JOIN json_array_elements_text(CAST(:tasks AS json)) AS t
        CROSS JOIN LATERAL (
            SELECT priority, run_at, id FROM dray_jobs
            WHERE state = 'queued' AND queue = q.value AND task = t.value
            ORDER BY priority DESC, run_at, id LIMIT :total
        ) AS r
        WHERE EXISTS (SELECT 1 FROM dray_workers WHERE id = :worker_id AND state IN ('active', 'draining'))
            AND NOT EXISTS (SELECT 1 FROM dray_queues WHERE name = q.value AND paused_at IS NOT NULL)
            AND NOT EXISTS (SELECT 1 FROM dray_limits AS l WHERE l.scope = 'queue' AND l.name = q.value AND l.in_force)
            AND NOT EXISTS (SELECT 1 FROM dray_limits AS l WHERE l.scope = 'task' AND l.name = t.value AND l.in_force)
        ORDER BY q.ordinality, r.priority DESC, r.run_at, r.id LIMIT :total
    ) AS head GROUP BY queue, task
), picked AS MATERIALIZED (
    SELECT p.id FROM share CROSS JOIN LATERAL (
        SELECT c.id, c.harmless, row_number() OVER () AS place FROM (
            SELECT id, attempt + 1 < max_attempts AND crashes = 0 AS harmless FROM dray_jobs
            WHERE state = 'queued' AND queue = share.queue AND task = share.task
            ORDER BY priority DESC, run_at, id LIMIT share.n FOR NO KEY UPDATE SKIP LOCKED
        ) AS c
    ) AS p WHERE p.place <= share.now OR p.harmless
)
UPDATE dray_jobs AS j SET
    state = 'running', worker_id = :worker_id, claim = j.claim + 1, attempt = j.attempt + 1,
    started_at = m.now, updated_at = m.now,
    unique_lock = CASE WHEN j.unique_scope = 'queued' THEN NULL ELSE j.unique_lock END
FROM (SELECT $now AS now) AS m
WHERE j.id $in_picked AND (j.expires_at IS NULL OR j.expires_at > m.now)
RETURNING CAST(j.id AS text), j.claim, j.task, j.queue, j.args, j.attempt, j.max_attempts, j.crashes, j.max_crashes, j.timeout,
    j.priority, j.run_at, CAST(j.workflow_id AS text), j.headers, j.retry

-- name: work_tend
-- Cancels what expired and queues what is due, as `job_expire` and `job_promote` do, in one statement.
WITH m AS MATERIALIZED (
    SELECT $now AS now
), late AS MATERIALIZED (
    SELECT id FROM dray_jobs
    WHERE expires_at IS NOT NULL AND state IN ('waiting', 'scheduled', 'queued', 'parked') AND expires_at <= (SELECT now FROM m)
    ORDER BY expires_at LIMIT :limit FOR NO KEY UPDATE SKIP LOCKED
), due AS MATERIALIZED (
    SELECT id FROM dray_jobs WHERE state = 'scheduled' AND run_at <= (SELECT now FROM m)
        AND (expires_at IS NULL OR expires_at > (SELECT now FROM m))
    ORDER BY run_at LIMIT :limit FOR NO KEY UPDATE SKIP LOCKED
), expired AS (
    UPDATE dray_jobs SET state = 'cancelled', reason = 'expired', finished_at = m.now, updated_at = m.now,
        unique_lock = CASE WHEN unique_until > m.now THEN unique_lock END, fanout_pending = TRUE
    FROM m WHERE id = ANY (ARRAY(SELECT id FROM late)) RETURNING id
), promoted AS (
    UPDATE dray_jobs SET state = $ready, updated_at = m.now
    FROM m WHERE id = ANY (ARRAY(SELECT id FROM due)) RETURNING queue
)
SELECT CAST(id AS text), NULL FROM expired UNION ALL SELECT NULL, queue FROM promoted

-- name: job_look
-- What a worker should know before it claims: in one statement, because that is what it costs.
SELECT
    :limit > 0 AND EXISTS (
        SELECT 1 FROM json_array_elements_text(CAST(:queues AS json)) AS q
        CROSS JOIN json_array_elements_text(CAST(:tasks AS json)) AS t
        CROSS JOIN LATERAL
            (SELECT 1 FROM dray_jobs WHERE state = 'queued' AND queue = q.value AND task = t.value
                ORDER BY priority DESC, run_at, id LIMIT 1) AS r
        WHERE NOT EXISTS (SELECT 1 FROM dray_queues WHERE name = q.value AND paused_at IS NOT NULL) AND NOT $gated(q.value)
    ),
    (SELECT min(run_at) FROM dray_jobs WHERE state = 'scheduled'),
    $now,
    CASE WHEN :all THEN (
        WITH RECURSIVE found (name) AS (
            SELECT min(queue) FROM dray_jobs WHERE state = 'queued'
            UNION ALL
            SELECT (SELECT min(j.queue) FROM dray_jobs AS j WHERE j.state = 'queued' AND j.queue > found.name)
            FROM found WHERE found.name IS NOT NULL
        ), keyed (name) AS (
            SELECT min(queue) FROM dray_jobs WHERE state = 'parked'
            UNION ALL
            SELECT (SELECT min(j.queue) FROM dray_jobs AS j WHERE j.state = 'parked' AND j.queue > keyed.name)
            FROM keyed WHERE keyed.name IS NOT NULL
        )
        SELECT CAST(json_agg(name) AS text)
        FROM (SELECT name FROM found UNION SELECT name FROM keyed) AS names WHERE name IS NOT NULL
    ) END,
    (
        SELECT CAST(json_agg(json_build_array(id, claim)) AS text) FROM dray_jobs
        WHERE worker_id = :id AND state = 'running' AND cancel_requested_at IS NOT NULL
    ),
    (
        SELECT CAST(json_agg(json_build_array(s.id, s.job_id, s.claim)) AS text) FROM
            (SELECT id, job_id, claim FROM dray_stacks WHERE worker_id = :id AND answered_at IS NULL LIMIT 10) AS s
    ),
    CASE WHEN :limit > 0 THEN (
        SELECT CAST(json_agg(q.value) AS text) FROM $texts(queues) AS q
        WHERE NOT EXISTS (SELECT 1 FROM dray_queues WHERE name = q.value AND paused_at IS NOT NULL) AND $gated(q.value)
    ) END

-- name: job_complete
-- rows: id, claim, result, drops_args, started_age_us, finished_age_us
-- The happy end of attempts: as `job_settle`, of one worker, without all that is about other ends.
WITH given AS MATERIALIZED (
    SELECT r.*, m.now, m.now - r.started_age_us * interval '1 microsecond' AS started_at,
        m.now - r.finished_age_us * interval '1 microsecond' AS finished_at
    FROM (SELECT $now AS now) AS m CROSS JOIN json_to_recordset(CAST(:rows AS json)) AS r(id uuid,
        claim integer, result text, drops_args boolean, started_age_us bigint, finished_age_us bigint)
), locked AS MATERIALIZED (
    SELECT g.* FROM (SELECT * FROM given ORDER BY id) AS g CROSS JOIN LATERAL (
        SELECT 1 FROM dray_jobs AS j
        WHERE j.id = g.id
            AND (j.worker_id, j.claim, j.state) IS NOT DISTINCT FROM (CAST(:worker_id AS uuid), g.claim, 'running')
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS held
)
UPDATE dray_jobs AS j SET
    state = 'completed', finished_at = g.finished_at, started_at = coalesce(g.started_at, j.started_at),
    updated_at = g.now, result = g.result, error = NULL, error_key = NULL, held = FALSE,
    args = CASE WHEN g.drops_args THEN NULL ELSE j.args END,
    unique_lock = CASE WHEN j.unique_until > g.now THEN j.unique_lock END
FROM locked AS g WHERE j.id = g.id AND j.id = ANY (ARRAY(SELECT id FROM locked))
RETURNING CAST(j.id AS text), j.state

-- name: job_settle
-- rows: id, worker_id, claim, state, final, reason, delay_us, gives_back, crash, result, drops_args, error, started_age_us, finished_age_us, outcome, error_type, error_message, traceback, keeps_error, error_key, error_class, key
-- Ends attempts, each by its own claim, and records them. Ids in order; a row that another open transaction holds is
-- left for the next batch. A job put back or rescued ends as cancelled(user) where a cancel was requested. The claim is
-- compared as a row, and the ids are asked for twice: a planner that takes the table for empty, as it does until the
-- first ANALYZE, would otherwise read all running jobs of all workers.
WITH given AS MATERIALIZED (
    SELECT r.*, m.now, r.state IN ('completed', 'failed', 'cancelled') AS final,
        m.now + r.delay_us * interval '1 microsecond' AS run_at,
        m.now - r.started_age_us * interval '1 microsecond' AS started_at,
        m.now - r.finished_age_us * interval '1 microsecond' AS finished_at
    FROM (SELECT $now AS now) AS m CROSS JOIN json_to_recordset(CAST(:rows AS json)) AS r(id uuid, worker_id uuid,
        claim integer, state text, reason text, delay_us bigint, gives_back integer, crash integer, result text,
        drops_args boolean, error text, started_age_us bigint, finished_age_us bigint, outcome text,
        error_type text, error_message text, traceback text, keeps_error boolean, error_key text,
        error_class text, key text)
), locked AS MATERIALIZED (
    SELECT g.*, held.started_at AS was_started_at FROM (SELECT * FROM given ORDER BY id) AS g CROSS JOIN LATERAL (
        SELECT j.started_at FROM dray_jobs AS j
        WHERE j.id = g.id AND (j.worker_id, j.claim, j.state) IS NOT DISTINCT FROM (g.worker_id, g.claim, 'running')
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS held
), written AS (
    UPDATE dray_jobs AS j SET
        state = CASE WHEN NOT (g.final AND g.crash IS NULL) AND j.cancel_requested_at IS NOT NULL THEN 'cancelled'
            WHEN g.state = 'queued' AND coalesce(g.key, j.key) IS NOT NULL THEN 'parked' ELSE g.state END,
        reason = CASE WHEN NOT (g.final AND g.crash IS NULL) AND j.cancel_requested_at IS NOT NULL THEN 'user'
            WHEN g.final THEN g.reason END,
        run_at = CASE WHEN g.final THEN j.run_at ELSE coalesce(g.run_at, j.run_at) END,
        attempt = j.attempt - coalesce(g.gives_back, 0), crashes = j.crashes + coalesce(g.crash, 0),
        error = CASE WHEN g.keeps_error THEN j.error ELSE g.error END,
        error_key = CASE WHEN g.crash IS NULL OR j.cancel_requested_at IS NULL THEN g.error_key END,
        result = g.result, updated_at = g.now, held = FALSE, key = coalesce(g.key, j.key),
        args = CASE WHEN g.drops_args THEN NULL ELSE j.args END,
        worker_id = CASE WHEN g.final OR j.cancel_requested_at IS NOT NULL THEN j.worker_id END,
        started_at = CASE WHEN g.final OR j.cancel_requested_at IS NOT NULL
            THEN coalesce(g.started_at, j.started_at) END,
        finished_at = CASE WHEN g.final OR j.cancel_requested_at IS NOT NULL THEN g.finished_at END,
        unique_lock = CASE WHEN (g.final OR j.cancel_requested_at IS NOT NULL)
            AND (j.unique_until IS NULL OR j.unique_until <= g.now) THEN NULL ELSE j.unique_lock END,
        progress = CASE WHEN g.final THEN j.progress END,
        progress_message = CASE WHEN g.final THEN j.progress_message END
    FROM locked AS g WHERE j.id = g.id AND j.id = ANY (ARRAY(SELECT id FROM locked))
    RETURNING j.id, j.claim, j.attempt + coalesce(g.gives_back, 0) AS attempt, j.state,
        coalesce(g.started_at, g.was_started_at) AS started_at, g.finished_at,
        g.worker_id, g.outcome, g.error_type, g.error_message, g.traceback, g.error_class
), recorded AS (
    INSERT INTO dray_attempts (job_id, claim, attempt, worker_id, outcome, error_type, error_message, traceback,
        started_at, finished_at, error_class)
    SELECT id, claim, attempt, worker_id, outcome, error_type, error_message, traceback, started_at, finished_at,
        error_class
    FROM written WHERE outcome <> 'completed'
    ON CONFLICT DO NOTHING
)
SELECT CAST(id AS text), state FROM written

-- name: meta_table
-- One row if Dray's tables are there. Not by to_regclass: within a transaction that waited for another one's CREATE
-- TABLE it goes on saying no, out of a cache.
SELECT 1 FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.relname = CAST(:table AS text)
    AND (n.nspname = CAST(:schema AS text) OR (CAST(:schema AS text) IS NULL AND n.nspname = ANY (current_schemas(FALSE))))
LIMIT 1

-- name: server_is_writable
-- Whether this user may change jobs on this server: not on a standby, nor where sessions are read-only by default.
SELECT NOT pg_is_in_recovery() AND current_setting('transaction_read_only') = 'off'
    AND coalesce(has_table_privilege(to_regclass('dray_jobs'), 'UPDATE'), FALSE)

-- name: server_now
-- The server's time.
SELECT $now

-- name: migrate_lock
-- One migration at a time.
SELECT pg_advisory_xact_lock(:space, :key)

-- name: transaction_number
-- What this transaction is known by, also once it is over.
SELECT CAST(pg_current_xact_id() AS text)

-- name: transaction_committed
-- Whether a transaction, whose answer was lost, was committed.
SELECT pg_xact_status(CAST(CAST(:number AS text) AS xid8)) = 'committed'
