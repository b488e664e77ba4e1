-- name: fanout_pick
-- One chunk of edges whose parent has ended, with what the child makes of that. Sorted first, then
-- each child is looked up and locked in this order: a join would look up all 10,000 of a wide parent for each chunk.
WITH ended AS MATERIALIZED (
    SELECT e.parent_id, e.child_id, p.state FROM dray_jobs AS p JOIN dray_edges AS e ON e.parent_id = p.id
    WHERE p.fanout_pending AND e.satisfied = 0 ORDER BY e.parent_id, e.child_id
)
SELECT ended.parent_id, ended.child_id, ended.state, c.on_parent_failure
FROM ended CROSS JOIN LATERAL (
    SELECT j.on_parent_failure FROM dray_jobs AS j WHERE j.id = ended.child_id FOR NO KEY UPDATE SKIP LOCKED
) AS c LIMIT :limit
