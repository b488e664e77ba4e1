-- name: prune_count
-- How many ended jobs `prune_pick` would find, one chunk after the other.
SELECT count(*) FROM dray_jobs AS j
WHERE state = :state AND finished_at IS NOT NULL AND finished_at < $at(before)
    AND workflow_id IS NULL AND NOT fanout_pending
    AND (unique_lock IS NULL OR unique_until IS NULL OR unique_until <= $now)
    AND NOT $needed(j)

-- name: prune_count_workflows
-- How many jobs the workflows have that `workflow_ended` would find, by state.
WITH ended AS MATERIALIZED (
    SELECT w.id FROM dray_workflows AS w
    WHERE w.created_at < $at(newest)
        AND NOT EXISTS (SELECT 1 FROM dray_jobs AS j WHERE j.workflow_id = w.id AND ($stays OR $needed(j)))
)
SELECT j.state, count(*) FROM dray_jobs AS j WHERE j.workflow_id IN (SELECT id FROM ended) GROUP BY j.state
