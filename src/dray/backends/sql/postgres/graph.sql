-- name: fanout_mark
-- Of jobs that have just ended, those whose children are to be told. A statement of its own: only a snapshot taken
-- after the row was locked shows the edges of an enqueue that committed meanwhile. A row that another transaction
-- has locked was not ended here: it is not waited for.
WITH wired AS MATERIALIZED (
    SELECT DISTINCT e.parent_id AS id FROM dray_edges AS e WHERE e.satisfied = 0 AND e.parent_id $in_ids(ids)
        AND EXISTS (SELECT 1 FROM dray_edges WHERE satisfied = 0)
), picked AS MATERIALIZED (
    SELECT id FROM dray_jobs WHERE id = ANY (ARRAY(SELECT id FROM wired)) AND finished_at IS NOT NULL
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE dray_jobs SET fanout_pending = TRUE WHERE id $in_picked
RETURNING id

-- name: fanout_pick
-- One chunk of edges whose parent has ended, with what the child makes of that. From the parents (OFFSET 0 keeps the
-- planner from hashing all open edges while it takes the tables for empty). Sorted first, then
-- each child is looked up and locked in this order: a join would look up all 10,000 of a wide parent for each chunk.
-- Then its parent, shared, and that row's state counts: a retry that has begun is left alone, one that begins waits
-- and finds the edges decided; without, it would take them for open and leave the children cancelled for ever.
WITH ended AS MATERIALIZED (
    SELECT e.parent_id, e.child_id FROM dray_jobs AS p CROSS JOIN LATERAL (
        SELECT parent_id, child_id FROM dray_edges WHERE parent_id = p.id AND satisfied = 0 OFFSET 0
    ) AS e WHERE p.fanout_pending ORDER BY e.parent_id, e.child_id
)
SELECT c.parent_id, c.id, p.state, c.on_parent_failure
FROM ended CROSS JOIN LATERAL (
    SELECT j.id, j.on_parent_failure, ended.parent_id FROM dray_jobs AS j WHERE j.id = ended.child_id
    FOR NO KEY UPDATE SKIP LOCKED
) AS c CROSS JOIN LATERAL (
    SELECT j.state FROM dray_jobs AS j WHERE j.id = c.parent_id AND j.fanout_pending FOR SHARE SKIP LOCKED
) AS p LIMIT :limit
