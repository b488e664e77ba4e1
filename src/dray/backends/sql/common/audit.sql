-- name: audit_bound
-- Where the next part of all jobs ends, and how many are in it.
SELECT max(CAST(id AS text)), count(*) FROM (
    SELECT id FROM dray_jobs WHERE id > :after ORDER BY id LIMIT :limit
) AS part

-- name: audit_jobs
-- What does not hold of jobs by themselves, their workers, their workflows and their counts. Max_attempts and
-- max_crashes of a job with a unique key may have been replaced by lower ones while it waited to run again; run_at is
-- compared with the time with some slack, because clocks are set; started_at and finished_at only where both are
-- readings of one steady clock.
WITH part AS MATERIALIZED (
    SELECT id, state, reason, attempt, max_attempts, crashes, max_crashes, claim, worker_id, unique_key, unique_lock,
        unique_until, unique_scope, workflow_id, waiting_on, fanout_pending, schedule, slot, cancel_requested_at,
        run_at, updated_at, started_at, finished_at, error_key, key, held, task, queue,
        state IN ('waiting', 'scheduled', 'queued', 'parked') AS is_unstarted,
        state IN ('completed', 'failed', 'cancelled') AS is_final
    FROM dray_jobs WHERE id > :after AND id <= :until
)
SELECT 'state', id FROM part
WHERE state NOT IN ('waiting', 'scheduled', 'queued', 'parked', 'running', 'completed', 'failed', 'cancelled')
UNION ALL
SELECT 'reason', id FROM part WHERE CASE state
    WHEN 'failed' THEN coalesce(reason, '') NOT IN ('error', 'timeout', 'crashed', 'result', 'arguments')
    WHEN 'cancelled' THEN coalesce(reason, '') NOT IN ('user', 'parent', 'expired')
    ELSE reason IS NOT NULL END
UNION ALL
SELECT 'finished', id FROM part WHERE is_final <> (finished_at IS NOT NULL)
UNION ALL
SELECT 'running', id FROM part WHERE state = 'running' AND (worker_id IS NULL OR started_at IS NULL
    OR NOT EXISTS (SELECT 1 FROM dray_workers AS w WHERE w.id = part.worker_id))
UNION ALL
SELECT 'unstarted', id FROM part WHERE is_unstarted
    AND (worker_id IS NOT NULL OR started_at IS NOT NULL OR cancel_requested_at IS NOT NULL)
UNION ALL
SELECT 'attempts', id FROM part WHERE unique_key IS NULL
    AND (attempt > max_attempts OR (is_unstarted AND attempt = max_attempts))
UNION ALL
SELECT 'crashes', id FROM part WHERE crashes > attempt
    OR (unique_key IS NULL AND (crashes > max_crashes OR (NOT is_final AND crashes = max_crashes)))
UNION ALL
SELECT 'claim', id FROM part
WHERE attempt > claim OR (attempt < 1 AND state IN ('running', 'completed', 'failed'))
UNION ALL
SELECT 'recorded', id FROM part WHERE state = 'failed' AND claim > 0 AND NOT EXISTS (
    SELECT 1 FROM dray_attempts AS a WHERE a.job_id = part.id AND a.claim = part.claim)
UNION ALL
SELECT 'error-key', id FROM part WHERE length(error_key) <> 16 OR (error_key IS NOT NULL AND state = 'completed')
UNION ALL
SELECT 'waiting-on', id FROM part WHERE state = 'waiting' AND (waiting_on = 0 OR waiting_on <>
    (SELECT count(*) FROM dray_edges AS e WHERE e.child_id = part.id AND e.satisfied <> 1))
UNION ALL
SELECT 'freed', id FROM part WHERE state IN ('scheduled', 'queued', 'parked', 'running') AND waiting_on <> 0
UNION ALL
SELECT 'fan-out', id FROM part WHERE fanout_pending AND NOT is_final
UNION ALL
SELECT 'unique-lock', id FROM part WHERE unique_lock IS NOT NULL AND (
    unique_key IS NULL OR unique_lock <> unique_key OR (state = 'running' AND unique_scope = 'queued')
    OR (is_final AND (unique_until IS NULL OR unique_until <= finished_at)))
UNION ALL
SELECT 'workflow', id FROM part WHERE workflow_id IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM dray_workflows AS w WHERE w.id = part.workflow_id)
UNION ALL
SELECT 'slot', id FROM part WHERE slot IS NOT NULL AND schedule IS NULL
UNION ALL
SELECT 'due', id FROM part WHERE state IN ('queued', 'parked') AND run_at > updated_at AND run_at > $now + $span(slack_us)
UNION ALL
SELECT 'turn', id FROM part WHERE (state = 'parked' AND key IS NULL) OR (state = 'queued' AND key IS NOT NULL)
UNION ALL
SELECT 'counted', id FROM part WHERE (held AND state <> 'running') OR (NOT held AND state = 'running' AND (key IS NOT NULL
    OR EXISTS (SELECT 1 FROM dray_limits AS l WHERE l.in_force
        AND ((l.scope = 'task' AND l.name = part.task) OR (l.scope = 'queue' AND l.name = part.queue))
        AND (l.kind <> 'limit' OR NOT EXISTS (SELECT 1 FROM dray_jobs AS h WHERE h.held AND $is_running(h)
            AND h.worker_id = part.worker_id AND h.task = part.task AND h.queue = part.queue)))))
UNION ALL
SELECT 'times', id FROM part WHERE finished_at < started_at
    AND (state = 'completed' OR (state = 'failed' AND reason <> 'crashed'))

-- name: audit_edges
-- What does not hold between jobs and those they run after; the id is the child's.
WITH edge AS MATERIALIZED (
    SELECT e.child_id AS id, e.satisfied, p.state AS parent_state, c.state AS child_state, c.on_parent_failure,
        p.state IN ('completed', 'failed', 'cancelled') AND NOT p.fanout_pending AS is_told
    FROM dray_edges AS e LEFT JOIN dray_jobs AS p ON p.id = e.parent_id LEFT JOIN dray_jobs AS c ON c.id = e.child_id
    WHERE e.child_id > :after AND e.child_id <= :until
)
SELECT 'edge', id FROM edge WHERE parent_state IS NULL OR child_state IS NULL
UNION ALL
SELECT 'told', id FROM edge WHERE satisfied = 0 AND is_told
UNION ALL
SELECT 'held', id FROM edge WHERE satisfied = -1 AND (parent_state NOT IN ('failed', 'cancelled')
    OR (child_state = 'waiting' AND on_parent_failure IN ('cancel', 'run')))
UNION ALL
SELECT 'freed', id FROM edge WHERE satisfied <> 1 AND child_state IN ('scheduled', 'queued', 'parked', 'running')

-- name: audit_attempts
-- What does not hold of recorded attempts; the id is the job's. Of an attempt whose worker died the start is a reading
-- of another clock than its end.
WITH tried AS MATERIALIZED (
    SELECT a.job_id AS id, a.claim, a.attempt, a.outcome, a.started_at, a.finished_at, j.state, j.claim AS newest
    FROM dray_attempts AS a LEFT JOIN dray_jobs AS j ON j.id = a.job_id
    WHERE a.job_id > :after AND a.job_id <= :until
)
SELECT 'attempt', id FROM tried WHERE state IS NULL
UNION ALL
SELECT 'attempt-claim', id FROM tried WHERE attempt < 1 OR attempt > claim OR claim > newest
    OR (claim = newest AND state IN ('running', 'completed'))
UNION ALL
SELECT 'attempt-times', id FROM tried WHERE finished_at < started_at AND outcome <> 'crashed'
UNION ALL
SELECT 'attempts-kept', id FROM tried GROUP BY id HAVING count(*) > :kept

-- name: audit_logs
-- What does not hold of captured log lines; the id is the job's.
WITH lines AS MATERIALIZED (
    SELECT job_id AS id, count(*) AS n FROM dray_logs WHERE job_id > :after AND job_id <= :until GROUP BY job_id
)
SELECT 'log', id FROM lines WHERE NOT EXISTS (SELECT 1 FROM dray_jobs AS j WHERE j.id = lines.id)
UNION ALL
SELECT 'logs-kept', id FROM lines WHERE n > :kept

-- name: audit_unique
-- Jobs that hold a unique lock which another one holds too, and how many locks are held so.
SELECT min(CAST(id AS text)), count(*) OVER () FROM dray_jobs WHERE unique_lock IS NOT NULL
GROUP BY unique_lock HAVING count(*) > 1 ORDER BY 1 LIMIT :limit

-- name: audit_steps
-- Jobs that are the same step of the same workflow as another one, and how many steps are so.
SELECT min(CAST(id AS text)), count(*) OVER () FROM dray_jobs WHERE workflow_id IS NOT NULL AND step IS NOT NULL
GROUP BY workflow_id, step HAVING count(*) > 1 ORDER BY 1 LIMIT :limit

-- name: audit_slots
-- Jobs of a slot of a schedule that has another one, and how many slots are so.
SELECT min(CAST(id AS text)), count(*) OVER () FROM dray_jobs WHERE schedule IS NOT NULL AND slot IS NOT NULL
GROUP BY schedule, slot HAVING count(*) > 1 ORDER BY 1 LIMIT :limit

-- name: audit_circles
-- Waiting jobs that wait for themselves. Every circle has an edge back in the order of ids, and hardly anything else
-- has: from some of those, as far as :reach steps lead.
WITH RECURSIVE back (start, at) AS (
    SELECT p.id, c.id FROM dray_edges AS e JOIN dray_jobs AS p ON p.id = e.parent_id JOIN dray_jobs AS c ON c.id = e.child_id
    WHERE e.satisfied = 0 AND e.parent_id > e.child_id AND p.state = 'waiting' AND c.state = 'waiting'
    LIMIT :edges
), walk (start, at) AS (
    SELECT start, at FROM back
    UNION
    SELECT w.start, e.child_id FROM walk AS w JOIN dray_edges AS e ON e.parent_id = w.at AND e.satisfied = 0
        JOIN dray_jobs AS c ON c.id = e.child_id AND c.state = 'waiting'
    WHERE w.at <> w.start
)
SELECT DISTINCT start FROM (SELECT start, at FROM walk LIMIT :reach) AS seen WHERE start = at ORDER BY start

-- name: audit_rollups
-- Minutes and hours whose sums are not those of their queues and tasks, and how many are so.
SELECT span, at, count(*) OVER () FROM (
    SELECT span, at, sum(CASE WHEN queue <> :all AND task <> :all THEN jobs ELSE 0 END) AS parts,
        sum(CASE WHEN queue <> :all AND task = :all THEN jobs ELSE 0 END) AS queues,
        sum(CASE WHEN queue = :all AND task <> :all THEN jobs ELSE 0 END) AS tasks,
        sum(CASE WHEN queue = :all AND task = :all THEN jobs ELSE 0 END) AS everything
    FROM dray_rollups GROUP BY span, at, outcome
) AS sums WHERE parts <> everything OR queues <> everything OR tasks <> everything
ORDER BY span, at LIMIT :limit

-- name: audit_limits
-- Rules under which more jobs run than they allow, one of which was started since they were last changed; and how many
-- are so. Of a key: more jobs of that key.
SELECT scope, name, kind, count(*) OVER () FROM (
    SELECT DISTINCT l.scope, l.name, l.kind FROM dray_limits AS l
    JOIN dray_jobs AS h ON h.held AND $is_running(h) AND CASE l.scope WHEN 'task' THEN h.task ELSE h.queue END = l.name
    WHERE l.in_force AND (l.kind = 'limit' OR (l.kind = 'key_limit' AND h.key IS NOT NULL))
    GROUP BY l.scope, l.name, l.kind, l.most, l.changed_at, CASE l.kind WHEN 'key_limit' THEN h.key END
    HAVING count(*) > l.most AND max(h.started_at) > l.changed_at
) AS broken ORDER BY scope, name, kind LIMIT :limit

-- name: audit_rates
-- Rates of which more has started within a period than they allow, and how many are so; of a key: more of that key. The
-- last start of such a period was made since the rate was changed: while too much has started before a change, nothing
-- starts after it. Not one slice more than a period: where a clock was set back, that could be too many.
SELECT scope, name, kind, count(*) OVER () FROM (
    SELECT DISTINCT l.scope, l.name, l.kind FROM dray_limits AS l
    JOIN dray_starts AS last ON last.scope = l.scope AND last.name = l.name AND last.period_us = l.period_us
        AND (last.key = '') = (l.kind = 'rate')
    WHERE l.in_force AND l.period_us > 0 AND last.at - $span_of(l.period_us) / 100 >= l.changed_at AND l.most < (
        SELECT sum(s.n) FROM dray_starts AS s WHERE s.scope = l.scope AND s.name = l.name AND s.key = last.key
            AND s.period_us = l.period_us AND s.at > last.at - $span_of(l.period_us) AND s.at <= last.at)
) AS broken ORDER BY scope, name, kind LIMIT :limit

-- name: audit_workers
-- What does not hold of workers and duties.
SELECT 'worker', CAST(id AS text) FROM dray_workers WHERE state NOT IN ('active', 'draining', 'stopped', 'dead')
    OR (state IN ('stopped', 'dead')) <> (stopped_at IS NOT NULL)
UNION ALL
SELECT 'duty', duty FROM dray_leases WHERE term < 1

-- name: audit_actions
-- What does not hold of what people did.
SELECT 'action', CAST(id AS text) FROM dray_actions
WHERE who = '' OR NOT (via $in_texts(vias)) OR NOT (verb $in_texts(verbs)) OR NOT (kind $in_texts(kinds))
UNION ALL
SELECT 'action-count', CAST(id AS text) FROM dray_actions
WHERE done < 0 OR refused < 0 OR (kind IN ('job', 'queue', 'schedule') AND (done > 1 OR done + refused < 1))

-- name: audit_orphans
-- Running jobs whose worker has ended, and by which claim they run: a rescuer takes them back.
SELECT j.id, j.claim FROM dray_jobs AS j JOIN dray_workers AS w ON w.id = j.worker_id
WHERE j.state = 'running' AND w.state IN ('stopped', 'dead')
