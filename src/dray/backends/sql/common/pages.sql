-- What the dashboard reads a page at a time. No statement reads more rows than it is told.

-- name: page_workflows
-- The newest workflows before an id, as many as the window, that have a part in their name.
SELECT id, name, created_at FROM (
    SELECT id, name, created_at FROM dray_workflows WHERE id < :before ORDER BY id DESC LIMIT :window
) AS newest
WHERE lower(name) LIKE :pattern ESCAPE '!' ORDER BY id DESC LIMIT :limit

-- name: page_workflows_end
-- The last workflow of a window.
SELECT id FROM dray_workflows WHERE id < :before ORDER BY id DESC LIMIT 1 OFFSET :window

-- name: page_tallies
-- The states of the jobs of several workflows, the newest first; counts at most this number of jobs.
SELECT workflow_id, state, count(*), count(CASE WHEN is_tolerated = 1 THEN 1 END) FROM (
    SELECT j.workflow_id, $shown_state(j) AS state, $tolerated AS is_tolerated FROM dray_jobs AS j
    WHERE j.workflow_id $in_ids(ids) ORDER BY j.workflow_id DESC LIMIT :most
) AS counted GROUP BY workflow_id, state

-- name: page_steps
-- The first jobs of a workflow, as a drawing of many needs them.
SELECT j.id, j.step, j.task, $shown_state(j), j.on_parent_failure FROM dray_jobs AS j
WHERE j.workflow_id = :id ORDER BY j.id LIMIT :most

-- name: page_edges
-- Who waits for whom in a workflow, of the first jobs first; parents may be jobs outside it.
SELECT e.parent_id, e.child_id FROM dray_jobs AS c JOIN dray_edges AS e ON e.child_id = c.id
WHERE c.workflow_id = :id ORDER BY e.child_id, e.parent_id LIMIT :most

-- name: page_schedules
-- Schedules by name, after one, that have a part in their name or their task's.
SELECT $schedule_columns FROM dray_schedules
WHERE $by_text(name) > :after AND (lower(name) LIKE :pattern ESCAPE '!' OR lower(task) LIKE :pattern ESCAPE '!')
ORDER BY $by_text(name) LIMIT :limit

-- name: page_schedule_jobs
-- The newest jobs of a schedule.
SELECT $live_columns FROM dray_jobs AS j WHERE j.schedule = :name ORDER BY j.id DESC LIMIT :limit

-- name: page_actions
-- The newest actions before an id, as many as the window, by a person and of a kind.
SELECT id, at, who, via, verb, kind, target, note, done, refused FROM (
    SELECT id, at, who, via, verb, kind, target, note, done, refused FROM dray_actions
    WHERE id < :before ORDER BY id DESC LIMIT :window
) AS newest
WHERE (CAST(:who AS text) IS NULL OR who = :who) AND (CAST(:kind AS text) IS NULL OR kind = :kind)
ORDER BY id DESC LIMIT :limit

-- name: page_actions_end
-- The last action of a window.
SELECT id FROM dray_actions WHERE id < :before ORDER BY id DESC LIMIT 1 OFFSET :window
