-- name: fanout_mark
-- Of jobs that have just ended, those whose children are to be told. A statement of its own: only a snapshot taken
-- after the row was locked shows the edges of an enqueue that committed meanwhile.
WITH picked AS MATERIALIZED (
    SELECT DISTINCT e.parent_id AS id FROM dray_edges AS e WHERE e.satisfied = 0 AND e.parent_id $in_ids(ids)
)
UPDATE dray_jobs SET fanout_pending = TRUE WHERE id $in_picked AND finished_at IS NOT NULL
RETURNING id

-- name: fanout_pick
-- One chunk of edges whose parent has ended, with what the child makes of that. CROSS JOIN: from the parents, not
-- through all edges.
SELECT e.parent_id, e.child_id, p.state, c.on_parent_failure
FROM dray_jobs AS p CROSS JOIN dray_edges AS e CROSS JOIN dray_jobs AS c
WHERE p.fanout_pending AND e.parent_id = p.id AND e.satisfied = 0 AND c.id = e.child_id
ORDER BY e.parent_id, e.child_id LIMIT :limit $skip_locked_c

-- name: fanout_freed
-- The queues of those among these children that need wait no longer.
SELECT DISTINCT queue FROM dray_jobs WHERE id $in_ids(ids) AND state IN ('queued', 'parked', 'scheduled')

-- name: fanout_finish
-- Ends the fan-out of parents that have no open edge left.
WITH picked AS MATERIALIZED (
    SELECT id FROM dray_jobs WHERE fanout_pending AND NOT EXISTS
        (SELECT 1 FROM dray_edges AS e WHERE e.parent_id = dray_jobs.id AND e.satisfied = 0)
    ORDER BY id LIMIT 1000 $skip_locked
)
UPDATE dray_jobs SET fanout_pending = FALSE WHERE id $in_picked

-- name: fanout_left
-- Whether any fan-out is left to do.
SELECT EXISTS (SELECT 1 FROM dray_jobs WHERE fanout_pending)

-- name: reconcile_look
-- Some of the jobs that the two statements below would change. Goes through all that waits, and locks nothing.
SELECT id FROM (
    SELECT id FROM dray_jobs WHERE NOT fanout_pending AND state IN ('completed', 'failed', 'cancelled')
        AND id IN (SELECT parent_id FROM dray_edges WHERE satisfied = 0) LIMIT :limit
) AS parents
UNION ALL SELECT id FROM (
    SELECT id FROM dray_jobs WHERE state = 'waiting' AND (waiting_on = 0 OR waiting_on <>
        (SELECT count(*) FROM dray_edges AS e WHERE e.child_id = dray_jobs.id AND e.satisfied <> 1)) LIMIT :limit
) AS children

-- name: reconcile_parents
-- Parents that ended while an edge of theirs stayed open and no fan-out is about to resolve it.
UPDATE dray_jobs SET fanout_pending = TRUE
WHERE id $in_ids(ids) AND NOT fanout_pending AND state IN ('completed', 'failed', 'cancelled')
    AND EXISTS (SELECT 1 FROM dray_edges AS e WHERE e.parent_id = dray_jobs.id AND e.satisfied = 0)
RETURNING id

-- name: reconcile_children
-- Waiting jobs whose count differs from their open edges: counted again, and freed at none.
UPDATE dray_jobs SET
    waiting_on = (SELECT count(*) FROM dray_edges AS e WHERE e.child_id = dray_jobs.id AND e.satisfied <> 1),
    state = CASE
        WHEN EXISTS (SELECT 1 FROM dray_edges AS e WHERE e.child_id = dray_jobs.id AND e.satisfied <> 1)
            THEN 'waiting'
        WHEN run_at > $now THEN 'scheduled'
        ELSE $ready END,
    updated_at = $now
WHERE id $in_ids(ids) AND state = 'waiting' AND (waiting_on = 0 OR waiting_on <>
    (SELECT count(*) FROM dray_edges AS e WHERE e.child_id = dray_jobs.id AND e.satisfied <> 1))
RETURNING id

-- name: edge_list
-- The parents and the children of a job.
SELECT parent_id, child_id, satisfied FROM dray_edges WHERE parent_id = :id OR child_id = :id
ORDER BY parent_id, child_id

-- name: parents_of
-- Jobs that one runs after.
SELECT p.id, p.task, p.step, p.queue, $shown_state(p), p.workflow_id, p.started_at, p.finished_at
FROM (SELECT parent_id FROM dray_edges WHERE child_id = :id ORDER BY parent_id LIMIT :limit) AS e
    JOIN dray_jobs AS p ON p.id = e.parent_id
ORDER BY p.id

-- name: children_of
-- Jobs that run after one, of which there may be thousands: only those within the limit are read.
SELECT c.id, c.task, c.step, c.queue, $shown_state(c), c.workflow_id, c.started_at, c.finished_at
FROM (SELECT child_id FROM dray_edges WHERE parent_id = :id ORDER BY child_id LIMIT :limit) AS e
    JOIN dray_jobs AS c ON c.id = e.child_id
ORDER BY c.id

-- name: workflow_insert
-- Names a workflow; a repeated insert of the same id changes nothing.
INSERT INTO dray_workflows (id, name, created_at) VALUES (:id, :name, $now) ON CONFLICT DO NOTHING

-- name: workflow_get
-- One workflow by id.
SELECT id, name, created_at FROM dray_workflows WHERE id = :id

-- name: workflow_list
-- The newest workflows before an id.
SELECT id, name, created_at FROM dray_workflows
WHERE id < :before ORDER BY id DESC LIMIT :limit

-- name: workflow_counts
-- The states of the jobs of a workflow, and how many of each its other steps tolerate.
SELECT $shown_state(j), count(*), count(CASE WHEN $tolerated = 1 THEN 1 END)
FROM dray_jobs AS j WHERE j.workflow_id = :id GROUP BY 1

-- name: workflow_jobs
-- The ids of a workflow's jobs in some states, in the order they were made.
SELECT j.id FROM dray_jobs AS j WHERE j.workflow_id = :id AND $shown_state(j) $in_texts(states) ORDER BY j.id

-- name: workflow_tallies
-- The same of several workflows.
SELECT j.workflow_id, $shown_state(j), count(*), count(CASE WHEN $tolerated = 1 THEN 1 END)
FROM dray_jobs AS j WHERE j.workflow_id $in_ids(ids) GROUP BY j.workflow_id, 2

-- name: workflow_names
-- What workflows are called.
SELECT id, name FROM dray_workflows WHERE id $in_ids(ids)

-- name: workflow_named
-- One row if a workflow has this name.
SELECT 1 FROM dray_workflows WHERE name = :name LIMIT 1

-- name: workflow_find_part
-- Ids of workflows that contain a part, newest first; reads them all.
SELECT id FROM dray_workflows WHERE CAST(id AS text) LIKE :pattern ORDER BY id DESC LIMIT :limit

-- name: workflow_step
-- The job of one step.
SELECT id FROM dray_jobs WHERE workflow_id = :id AND step = :step

-- name: workflow_nodes
-- A workflow's jobs, as a drawing of it needs them.
SELECT j.id, j.step, j.task, $shown_state(j), j.reason, j.error FROM dray_jobs AS j WHERE j.workflow_id = :id ORDER BY j.id

-- name: workflow_edges
-- Who waits for whom in a workflow; parents may be jobs outside it.
SELECT e.parent_id, e.child_id FROM dray_jobs AS c JOIN dray_edges AS e ON e.child_id = c.id
WHERE c.workflow_id = :id ORDER BY e.child_id, e.parent_id

-- name: workflow_moved_by
-- Parents that will yet move a waiting step: those that have not ended and are no waiting steps of it themselves, and
-- those whose end is still to be passed on.
SELECT DISTINCT p.id FROM dray_jobs AS c JOIN dray_edges AS e ON e.child_id = c.id
    JOIN dray_jobs AS p ON p.id = e.parent_id
WHERE c.workflow_id = :id AND c.state = 'waiting' AND e.satisfied = 0
    AND (p.state <> 'waiting' OR p.workflow_id IS NULL OR p.workflow_id <> :id)
ORDER BY p.id LIMIT :limit

-- name: cancel_requested
-- One row if a job was asked to stop.
SELECT id FROM dray_jobs WHERE id = :id AND cancel_requested_at IS NOT NULL

-- name: edge_insert
-- rows: parent_id, child_id, satisfied
-- Wires a child to a parent.
INSERT INTO dray_edges (parent_id, child_id, satisfied) VALUES (:parent_id, :child_id, :satisfied)
ON CONFLICT DO NOTHING

-- name: edge_mark
-- rows: parent_id, child_id, satisfied
-- Decides an open edge, once. The sum keeps the planner off the index of open edges: with 10,000 children it would go
-- through all of a parent's for each of them.
UPDATE dray_edges SET satisfied = :satisfied
WHERE parent_id = :parent_id AND child_id = :child_id AND satisfied + 0 = 0

-- name: child_free
-- rows: child_id, fulfilled
-- Counts a child's fulfilled parents down; at none it is scheduled or queued.
UPDATE dray_jobs SET
    waiting_on = waiting_on - :fulfilled,
    state = CASE WHEN waiting_on > :fulfilled THEN state WHEN run_at > $now THEN 'scheduled' ELSE $ready END,
    updated_at = $now
WHERE id = :child_id AND state = 'waiting' AND waiting_on >= :fulfilled

-- name: child_cancel
-- rows: child_id
-- Cancels a child whose parent did not complete; its own children are next.
UPDATE dray_jobs SET
    state = 'cancelled', reason = 'parent', finished_at = $now, updated_at = $now,
    unique_lock = CASE WHEN unique_until > $now THEN unique_lock END,
    fanout_pending = EXISTS
        (SELECT 1 FROM dray_edges AS e WHERE e.parent_id = dray_jobs.id AND e.satisfied = 0)
WHERE id = :child_id AND state = 'waiting'
