-- name: starts_add
-- Notes what has started under a rate, at the end of the slice of its period.
INSERT INTO dray_starts (scope, name, key, period_us, at, n)
VALUES (:scope, :name, :key, :period_us, (:now / max(1, :period_us / 100) + 1) * max(1, :period_us / 100), :n)
ON CONFLICT (scope, name, key, period_us, at) DO UPDATE SET n = n + excluded.n

-- name: starts_seed
-- What has started under rates with other periods counts for one that is new: at the end of a slice of its own, since no
-- start is later than the end of its slice, nor than now. Where several rates noted the same starts, the larger number.
INSERT INTO dray_starts (scope, name, key, period_us, at, n)
SELECT :scope, :name, part.key, :period_us, part.at, max(part.n) FROM (
    SELECT s.key, s.period_us, sum(s.n) AS n,
        (min(s.at, :now) + max(1, :period_us / 100) - 1) / max(1, :period_us / 100) * max(1, :period_us / 100) AS at
    FROM dray_starts AS s
    WHERE s.scope = :scope AND s.name = :name AND (s.key <> '') = :by_key AND s.period_us <> :period_us
        AND s.at > :now - :period_us AND s.at <= :now + s.period_us
    GROUP BY s.key, s.period_us, 4
) AS part WHERE TRUE GROUP BY part.key, part.at
ON CONFLICT (scope, name, key, period_us, at) DO UPDATE SET n = max(n, excluded.n)

-- name: gate_claim
-- Takes jobs by their ids, some of which count for limits. As `job_claim` otherwise.
UPDATE dray_jobs SET
    state = 'running', worker_id = :worker_id, claim = claim + 1, attempt = attempt + 1,
    started_at = :now, updated_at = :now, held = dray_jobs.id $in_ids(held),
    unique_lock = CASE WHEN unique_scope = 'queued' THEN NULL ELSE unique_lock END
FROM json_each(:ids) AS given
WHERE dray_jobs.id = given.value AND state IN ('queued', 'parked')
    AND (expires_at IS NULL OR expires_at > :now)
    AND (given.key < :limit OR (attempt + 1 < max_attempts AND crashes = 0))

-- name: gate_claimed
-- As `job_claimed`, with keys.
SELECT json_group_array(json_array(j.id, j.claim, j.task, j.queue, j.args, j.attempt, j.max_attempts, j.crashes,
    j.max_crashes, CAST(j.timeout AS text), j.priority, j.run_at, j.workflow_id, j.headers, j.retry, j.key,
    json(CASE WHEN j.held THEN 'true' ELSE 'false' END)))
FROM json_each(:ids) AS given CROSS JOIN dray_jobs AS j ON j.id = given.value
WHERE j.state = 'running' AND +j.worker_id = :worker_id

-- name: follower_hold
-- From now on limits count these jobs: each runs in the place of one that has ended.
UPDATE dray_jobs SET held = TRUE FROM json_each(:pairs) AS given
WHERE dray_jobs.id = json_extract(given.value, '$[0]') AND dray_jobs.claim = json_extract(given.value, '$[1]') AND worker_id = :worker_id AND state = 'running'

-- name: follower_unheld
-- Those that `follower_hold` has skipped: none, where there is one writer.
SELECT j.id FROM json_each(:pairs) AS given CROSS JOIN dray_jobs AS j ON j.id = json_extract(given.value, '$[0]')
WHERE NOT j.held AND j.claim = json_extract(given.value, '$[1]') AND +j.worker_id = :worker_id AND j.state = 'running'

-- name: turn_hop
-- The keys after one, in their order, that have room, each with its first job: one entry of the index is read for a key,
-- however many jobs it has. A key at which the hops are used up comes whether it has room or not. After the last key comes
-- a row without one: its number says how many there were.
-- The inner LIMIT keeps the rooms of a key from being counted twice.
WITH RECURSIVE hop (key, n) AS (
    SELECT (SELECT j.key FROM dray_jobs AS j WHERE j.state = 'parked' AND j.queue = :queue AND j.task = :task
        AND j.priority = :priority AND j.key > :after ORDER BY j.key LIMIT 1), 1
    UNION ALL
    SELECT (SELECT j.key FROM dray_jobs AS j WHERE j.state = 'parked' AND j.queue = :queue AND j.task = :task
        AND j.priority = :priority AND j.key > hop.key ORDER BY j.key LIMIT 1), hop.n + 1
    FROM hop WHERE hop.key IS NOT NULL AND hop.n < :hops AND (:until IS NULL OR hop.key <= :until)
)
SELECT line.key, line.of_task, line.of_queue, line.n,
    (SELECT j.run_at FROM dray_jobs AS j WHERE j.state = 'parked' AND j.queue = :queue AND j.task = :task
        AND j.priority = :priority AND j.key = line.key ORDER BY j.run_at, j.id LIMIT 1),
    (SELECT j.id FROM dray_jobs AS j WHERE j.state = 'parked' AND j.queue = :queue AND j.task = :task
        AND j.priority = :priority AND j.key = line.key ORDER BY j.run_at, j.id LIMIT 1)
FROM (
    SELECT CASE WHEN :until IS NULL OR hop.key <= :until THEN hop.key END AS key, hop.n,
        $key_room(task, hop.key) AS of_task, $key_room(queue, hop.key) AS of_queue
    FROM hop LIMIT :hops
) AS line
WHERE line.key IS NULL OR line.n = :hops OR (line.of_task > 0 AND line.of_queue > 0)
LIMIT :limit
