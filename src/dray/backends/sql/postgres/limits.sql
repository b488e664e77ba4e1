-- name: starts_add
-- Notes what has started under a rate, at the end of the slice of its period.
INSERT INTO dray_starts (scope, name, key, period_us, at, n)
SELECT r.scope, r.name, r.key, r.period_us, timestamptz 'epoch' + interval '1 microsecond'
    * (floor(extract(epoch FROM $now) * 1000000 / greatest(1, r.period_us / 100)) + 1) * greatest(1, r.period_us / 100),
    r.n
FROM (SELECT CAST(:scope AS text) AS scope, CAST(:name AS text) AS name, CAST(:key AS text) AS key,
    CAST(:period_us AS bigint) AS period_us, CAST(:n AS integer) AS n) AS r
ON CONFLICT (scope, name, key, period_us, at) DO UPDATE SET n = dray_starts.n + excluded.n

-- name: starts_seed
-- What has started under rates with other periods counts for one that is new: at the end of a slice of its own, since no
-- start is later than the end of its slice, nor than now. Where several rates noted the same starts, the larger number.
INSERT INTO dray_starts (scope, name, key, period_us, at, n)
SELECT part.scope, part.name, part.key, CAST(:period_us AS bigint), part.at, CAST(max(part.n) AS integer) FROM (
    SELECT s.scope, s.name, s.key, s.period_us, sum(s.n) AS n, timestamptz 'epoch' + interval '1 microsecond'
        * ceil(extract(epoch FROM least(s.at, $now)) * 1000000 / greatest(1, CAST(:period_us AS bigint) / 100))
        * greatest(1, CAST(:period_us AS bigint) / 100) AS at
    FROM dray_starts AS s
    WHERE s.scope = :scope AND s.name = :name AND (s.key <> '') = :by_key AND s.period_us <> :period_us
        AND s.at > $now - $span(period_us) AND s.at <= $now + $span_of(s.period_us)
    GROUP BY s.scope, s.name, s.key, s.period_us, 6
) AS part GROUP BY part.scope, part.name, part.key, part.at
ON CONFLICT (scope, name, key, period_us, at) DO UPDATE SET n = greatest(dray_starts.n, excluded.n)

-- name: gated_queues
-- Which of these queues have limits or keys, and whether a live worker may claim from them.
SELECT q.value, EXISTS (SELECT 1 FROM dray_workers WHERE id = :worker_id AND state IN ('active', 'draining'))
    AND NOT EXISTS (SELECT 1 FROM dray_queues WHERE name = q.value AND paused_at IS NOT NULL)
FROM $texts(queues) AS q WHERE $gated(q.value)

-- name: gate_lock
-- Locks these for this transaction; waits for none. Returns those that it got.
SELECT k.value FROM $texts(keys) AS k WHERE pg_try_advisory_xact_lock(:space, CAST(k.value AS integer))

-- name: gate_patience
-- The server ends a session that keeps locks of limits and does nothing: its worker was stopped inside a claim.
SELECT set_config('idle_in_transaction_session_timeout', '5s', TRUE)

-- name: limit_patience
-- How long a change of limits waits: for claims under way, and for running jobs whose rows another transaction has
-- locked.
SELECT set_config('lock_timeout', :milliseconds, TRUE)

-- name: limit_mark
-- Before a change of limits, while claims go on: marks running jobs of a task or a queue whose rows are not locked. Not
-- those of workers that do not know the mark, and would not remove it.
UPDATE dray_jobs AS j SET held = TRUE WHERE j.id = ANY (ARRAY(
    SELECT r.id FROM dray_jobs AS r WHERE r.state = 'running' AND NOT r.held
        AND CASE CAST(:scope AS text) WHEN 'task' THEN r.task ELSE r.queue END = :name
        AND r.worker_id IN (SELECT w.id FROM dray_workers AS w WHERE w.knows IS NOT NULL)
    FOR NO KEY UPDATE SKIP LOCKED
)) AND j.state = 'running'

-- name: limit_unmarked
-- Those that `limit_mark` has skipped.
SELECT r.id FROM dray_jobs AS r WHERE r.state = 'running' AND NOT r.held
    AND CASE CAST(:scope AS text) WHEN 'task' THEN r.task ELSE r.queue END = :name
    AND r.worker_id IN (SELECT w.id FROM dray_workers AS w WHERE w.knows IS NOT NULL)

-- name: limit_mark_one
-- Marks a running job that was locked.
UPDATE dray_jobs AS j SET held = TRUE WHERE j.id = :id AND $is_running(j) AND NOT j.held

-- name: limit_begin
-- First in a change of limits: waits for the claims under way, so that none commits that does not know the new ones.
SELECT pg_advisory_xact_lock(:space, :key)

-- name: gate_claim
-- Takes jobs by their ids, some of which count for limits. Not one whose key was replaced since it was chosen: room was
-- counted for the other one. As `job_claim` otherwise. `held` and `at_once` are NULL where all of them are meant: to look
-- each one up in a list takes longer the longer it is.
WITH picked AS MATERIALIZED (
    SELECT j.id FROM dray_jobs AS j
    WHERE j.id $in_ids(ids) AND j.state IN ('queued', 'parked')
        AND coalesce(j.key, '') = (SELECT CAST(:keys AS jsonb)) ->> CAST(j.id AS text)
        AND (CAST(:at_once AS json) IS NULL OR j.id $in_ids(at_once) OR (j.attempt + 1 < j.max_attempts AND j.crashes = 0))
    ORDER BY j.id FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE dray_jobs AS j SET
    state = 'running', worker_id = :worker_id, claim = j.claim + 1, attempt = j.attempt + 1,
    started_at = m.now, updated_at = m.now, held = CAST(:held AS json) IS NULL OR j.id $in_ids(held),
    unique_lock = CASE WHEN j.unique_scope = 'queued' THEN NULL ELSE j.unique_lock END
FROM (SELECT $now AS now) AS m
WHERE j.id $in_picked AND (j.expires_at IS NULL OR j.expires_at > m.now)
RETURNING CAST(j.id AS text), j.claim, j.task, j.queue, j.args, j.attempt, j.max_attempts, j.crashes, j.max_crashes, j.timeout,
    j.priority, j.run_at, CAST(j.workflow_id AS text), j.headers, j.retry, j.key, j.held

-- name: gate_swap
-- Takes jobs of a task, no more than this transaction has ended of the same task and queue: where one takes the place of
-- another, no more run than before, and so no lock is needed. Not more than there is room for: the limit may have been
-- lowered. After these up to `ahead` more, which limits do not count yet, see `standbys.py`; none while more run than a
-- limit allows. None where another kind of rule counts, or the queue has other jobs; `gate_claim` is for those. Whether it has
-- any is asked by min, which reads one entry of an index: for EXISTS the planner might read the whole table.
WITH rule AS MATERIALIZED (
    SELECT scope, name, kind, most FROM dray_limits
    WHERE in_force AND ((scope = 'queue' AND name = :queue) OR (scope = 'task' AND name = :task))
), room AS MATERIALIZED (
    SELECT least(
        :limit,
        (SELECT min(r.most - (SELECT count(*) FROM dray_jobs AS h
            WHERE h.held AND $is_running(h) AND CASE r.scope WHEN 'task' THEN h.task ELSE h.queue END = r.name))
        FROM rule AS r)
    ) AS n
    WHERE EXISTS (SELECT 1 FROM rule) AND NOT EXISTS (SELECT 1 FROM rule WHERE kind <> 'limit')
        AND EXISTS (SELECT 1 FROM dray_workers WHERE id = :worker_id AND state IN ('active', 'draining'))
        AND NOT EXISTS (SELECT 1 FROM dray_queues WHERE name = :queue AND paused_at IS NOT NULL)
        AND (SELECT min(task) FROM dray_jobs WHERE state = 'parked' AND queue = :queue) IS NULL
        AND (SELECT min(task) FROM dray_jobs WHERE state = 'queued' AND queue = :queue AND task < :task) IS NULL
        AND (SELECT min(task) FROM dray_jobs WHERE state = 'queued' AND queue = :queue AND task > :task) IS NULL
), picked AS MATERIALIZED (
    SELECT id, priority, run_at FROM dray_jobs
    WHERE state = 'queued' AND queue = :queue AND task = :task AND (expires_at IS NULL OR expires_at > $now)
    ORDER BY priority DESC, run_at, id LIMIT coalesce((SELECT n + :ahead FROM room WHERE n >= 0), 0)
    FOR NO KEY UPDATE SKIP LOCKED
), placed AS MATERIALIZED (
    SELECT id, row_number() OVER (ORDER BY priority DESC, run_at, id) <= (SELECT n FROM room) AS counts FROM picked
)
UPDATE dray_jobs AS j SET
    state = 'running', worker_id = :worker_id, claim = j.claim + 1, attempt = j.attempt + 1,
    started_at = m.now, updated_at = m.now, held = p.counts,
    unique_lock = CASE WHEN j.unique_scope = 'queued' THEN NULL ELSE j.unique_lock END
FROM (SELECT $now AS now) AS m CROSS JOIN placed AS p
WHERE j.id = p.id AND j.id $in_picked AND (j.expires_at IS NULL OR j.expires_at > m.now)
    AND (p.counts OR (j.attempt + 1 < j.max_attempts AND j.crashes = 0))
RETURNING CAST(j.id AS text), j.claim, j.task, j.queue, j.args, j.attempt, j.max_attempts, j.crashes, j.max_crashes, j.timeout,
    j.priority, j.run_at, CAST(j.workflow_id AS text), j.headers, j.retry, j.key, j.held

-- name: follower_hold
-- From now on limits count these jobs: each runs in the place of one that has ended. Not those whose rows are locked.
UPDATE dray_jobs AS j SET held = TRUE WHERE j.id = ANY (ARRAY(
    SELECT r.id FROM json_array_elements(CAST(:pairs AS json)) AS p(pair)
    JOIN dray_jobs AS r ON r.id = CAST(p.pair ->> 0 AS uuid)
    WHERE (r.worker_id, r.claim, r.state) IS NOT DISTINCT FROM
        (CAST(:worker_id AS uuid), CAST(p.pair ->> 1 AS integer), 'running')
    FOR NO KEY UPDATE OF r SKIP LOCKED
))

-- name: follower_unheld
-- Those that `follower_hold` has skipped.
SELECT CAST(r.id AS text) FROM json_array_elements(CAST(:pairs AS json)) AS p(pair)
JOIN dray_jobs AS r ON r.id = CAST(p.pair ->> 0 AS uuid)
WHERE NOT r.held AND (r.worker_id, r.claim, r.state) IS NOT DISTINCT FROM
    (CAST(:worker_id AS uuid), CAST(p.pair ->> 1 AS integer), 'running')

-- name: turn_hop
-- The keys after one, in their order, that have room, each with its first job: one entry of the index is read for a key,
-- however many jobs it has. A key at which the hops are used up comes whether it has room or not. After the last key comes
-- a row without one: its number says how many there were.
WITH RECURSIVE hop (key, run_at, id, n) AS (
    SELECT first.key, first.run_at, first.id, 1
    FROM (SELECT 1) AS one LEFT JOIN (
        SELECT j.key, j.run_at, j.id FROM dray_jobs AS j WHERE j.state = 'parked' AND j.queue = :queue
            AND j.task = :task AND j.priority = :priority AND j.key > :after ORDER BY j.key, j.run_at, j.id LIMIT 1
    ) AS first ON TRUE
    UNION ALL
    SELECT following.key, following.run_at, following.id, hop.n + 1
    FROM hop LEFT JOIN LATERAL (
        SELECT j.key, j.run_at, j.id FROM dray_jobs AS j WHERE j.state = 'parked' AND j.queue = :queue
            AND j.task = :task AND j.priority = :priority AND j.key > hop.key ORDER BY j.key, j.run_at, j.id LIMIT 1
    ) AS following ON TRUE
    WHERE hop.key IS NOT NULL AND hop.n < :hops AND (CAST(:until AS text) IS NULL OR hop.key <= :until)
)
SELECT line.key, line.of_task, line.of_queue, line.n, line.run_at, line.id
FROM (
    SELECT CASE WHEN CAST(:until AS text) IS NULL OR hop.key <= :until THEN hop.key END AS key, hop.n, hop.run_at,
        hop.id, $key_room(task, hop.key) AS of_task, $key_room(queue, hop.key) AS of_queue
    FROM hop LIMIT :hops
) AS line
WHERE line.key IS NULL OR line.n = :hops OR (line.of_task > 0 AND line.of_queue > 0)
LIMIT :limit

-- name: line_free
-- As `line_plain`, but only jobs that no other transaction has locked, and that have not expired; locks them.
SELECT priority, run_at, id FROM dray_jobs
WHERE state = 'queued' AND queue = :queue AND task = :task AND (expires_at IS NULL OR expires_at > $now)
ORDER BY priority DESC, run_at, id LIMIT :limit FOR NO KEY UPDATE SKIP LOCKED

-- name: turn_free
-- The first jobs of some keys that no other transaction has locked, and that have not expired; locks them.
SELECT k.value, free.run_at, free.id
FROM $texts(keys) AS k CROSS JOIN LATERAL (
    SELECT j.run_at, j.id FROM dray_jobs AS j WHERE j.state = 'parked' AND j.queue = :queue
        AND j.task = :task AND j.priority = :priority AND j.key = k.value AND (j.expires_at IS NULL OR j.expires_at > $now)
    ORDER BY j.run_at, j.id LIMIT :limit FOR NO KEY UPDATE SKIP LOCKED
) AS free
