-- name: prune_count
-- How many ended jobs `prune_find` would find, one chunk after the other.
SELECT count(*) FROM dray_jobs AS j
WHERE state = :state AND finished_at IS NOT NULL AND finished_at < $at(before)
    AND keep_us IS NULL AND workflow_id IS NULL AND NOT fanout_pending
    AND (unique_lock IS NULL OR unique_until IS NULL OR unique_until <= $now)
    AND NOT $needed(j)

-- name: prune_count_kept
-- How many ended jobs `prune_kept_find` would find, one chunk after the other, by state.
SELECT state, count(*) FROM dray_jobs AS j
WHERE keep_us IS NOT NULL AND finished_at IS NOT NULL AND $kept_until(j) <= $utc_now
    AND state || '' $in_texts(states)
    AND workflow_id IS NULL AND NOT fanout_pending
    AND (unique_lock IS NULL OR unique_until IS NULL OR unique_until <= $now)
    AND NOT $needed(j)
GROUP BY state

-- name: prune_count_workflows
-- How many jobs the workflows have that `workflow_ended` would find, by state.
WITH ended AS MATERIALIZED (
    SELECT w.id FROM dray_workflows AS w
    WHERE w.created_at < $at(newest)
        AND NOT EXISTS (SELECT 1 FROM dray_jobs AS j WHERE j.workflow_id = w.id AND ($stays OR $needed_beyond(j)))
)
SELECT j.state, count(*) FROM dray_jobs AS j WHERE j.workflow_id IN (SELECT id FROM ended) GROUP BY j.state

-- name: prune_find
-- One chunk of ended jobs that are old enough, oldest first, and how many rows each has in all tables: none of a
-- workflow, none that a child needs or that has a time of its own. Locks nothing: it passes over all that is old
-- and kept, and `prune_reach` tells how far one look may go.
SELECT found.id, $rows_of(found), found.workflow_id FROM (
    SELECT j.id, j.workflow_id, j.finished_at FROM dray_jobs AS j
    WHERE j.state = :state AND j.finished_at IS NOT NULL AND j.finished_at < $at(before)
        AND j.finished_at >= $at(after) AND j.keep_us IS NULL AND j.workflow_id IS NULL AND NOT j.fanout_pending
        AND (j.unique_lock IS NULL OR j.unique_until IS NULL OR j.unique_until <= $now)
        AND NOT $needed(j)
    ORDER BY j.finished_at LIMIT :limit
) AS found ORDER BY found.finished_at

-- name: prune_reach
-- How far some of the jobs of a state reach that ended in a stretch of time, and how many they are: off the index.
SELECT max(finished_at), count(*) FROM (
    SELECT finished_at FROM dray_jobs
    WHERE state = :state AND finished_at IS NOT NULL AND finished_at < $at(before) AND finished_at >= $at(after)
    ORDER BY finished_at LIMIT :limit
) AS stretch

-- name: prune_kept_find
-- One chunk of ended jobs whose own time is over, otherwise as `prune_find`. What is joined to nothing here, and cast
-- below, keeps SQLite and PostgreSQL from taking another index, in which all that has ended is.
SELECT found.id, $rows_of(found), found.workflow_id FROM (
    SELECT j.id, j.workflow_id, $kept_until(j) AS kept_until FROM dray_jobs AS j
    WHERE j.keep_us IS NOT NULL AND j.finished_at IS NOT NULL AND $kept_until(j) <= $utc_now
        AND j.state || '' $in_texts(states) AND j.workflow_id IS NULL AND NOT j.fanout_pending
        AND (j.unique_lock IS NULL OR j.unique_until IS NULL OR j.unique_until <= $now)
        AND NOT $needed(j)
    ORDER BY $kept_until(j) LIMIT :limit
) AS found ORDER BY found.kept_until

-- name: prune_kept_steps
-- Whether the own time of a workflow's job is over: then workflows of any age may go.
SELECT EXISTS (
    SELECT 1 FROM dray_jobs AS j
    WHERE j.keep_us IS NOT NULL AND j.finished_at IS NOT NULL AND $kept_until(j) <= $utc_now
        AND CAST(j.workflow_id AS text) IS NOT NULL
)

-- name: prune_pick
-- Locks those among old jobs that are still old and ended, and that no other transaction has. The rest of the
-- transaction sees what was wired to them before: whether a child needs one is asked when it is deleted.
SELECT j.id FROM dray_jobs AS j WHERE j.id $in_ids(ids) AND $stays IS NOT TRUE ORDER BY j.id $skip_locked_j

-- name: prune_child_edges
-- Some of the edges from an old job to children that have completed. The others need it.
WITH picked AS MATERIALIZED (
    SELECT e.child_id AS id FROM dray_edges AS e JOIN dray_jobs AS c ON c.id = e.child_id
    WHERE e.parent_id = :id AND c.state = 'completed' ORDER BY e.child_id LIMIT :limit
)
DELETE FROM dray_edges WHERE parent_id = :id AND child_id $in_picked
RETURNING 1

-- name: prune_parent_edges
-- Some of the edges to an old job from its parents; not of one that a child still needs.
WITH picked AS MATERIALIZED (
    SELECT e.parent_id AS id FROM dray_edges AS e
    WHERE e.child_id = :id AND NOT EXISTS (SELECT 1 FROM dray_edges AS c WHERE c.parent_id = :id)
    ORDER BY e.parent_id LIMIT :limit
)
DELETE FROM dray_edges WHERE child_id = :id AND parent_id $in_picked
RETURNING 1

-- name: prune_logs
-- Some of the captured lines of an old job; not of one that a child still needs.
WITH picked AS MATERIALIZED (
    SELECT l.seq AS id FROM dray_logs AS l
    WHERE l.job_id = :id AND NOT EXISTS (SELECT 1 FROM dray_edges AS c WHERE c.parent_id = :id)
    ORDER BY l.seq LIMIT :limit
)
DELETE FROM dray_logs WHERE seq $in_picked
RETURNING 1

-- name: prune_attempts
-- Some of the attempts of an old job; not of one that a child still needs.
WITH picked AS MATERIALIZED (
    SELECT a.claim AS id FROM dray_attempts AS a
    WHERE a.job_id = :id AND NOT EXISTS (SELECT 1 FROM dray_edges AS c WHERE c.parent_id = :id)
    ORDER BY a.claim LIMIT :limit
)
DELETE FROM dray_attempts WHERE job_id = :id AND claim $in_picked
RETURNING 1

-- name: workflow_next
-- The next workflows in the order of their ids.
SELECT id FROM dray_workflows WHERE id > :after AND created_at < $at(newest) ORDER BY id LIMIT :limit

-- name: workflow_ended
-- Which of these workflows have ended with all their jobs, each longer ago than jobs of its state are kept, and how
-- many jobs they have. A value and not NOT EXISTS, which may become a join with all jobs.
SELECT w.id, (SELECT count(*) FROM dray_jobs AS j WHERE j.workflow_id = w.id) FROM dray_workflows AS w
WHERE w.id $in_ids(ids)
    AND (SELECT 1 FROM dray_jobs AS j WHERE j.workflow_id = w.id AND ($stays OR $needed_beyond(j)) LIMIT 1) IS NULL
ORDER BY w.id

-- name: workflow_prune_find
-- Some of the jobs of workflows, one workflow after the other, and how many rows each has in all tables. The newest
-- first: where a workflow goes in parts, a step that is started over meanwhile still has its parents.
SELECT found.id, $rows_of(found), found.workflow_id FROM (
    SELECT j.id, j.workflow_id FROM dray_jobs AS j WHERE j.workflow_id $in_ids(ids)
    ORDER BY j.workflow_id DESC, j.id DESC LIMIT :limit
) AS found ORDER BY found.workflow_id DESC, found.id DESC

-- name: workflow_prune_pick
-- Locks the jobs of ended workflows, and returns those of which it got every one. Not where another transaction
-- holds a job, to start it over or to wire a child to it, nor where one was started over since the workflow was
-- found to have ended: that is asked of each row again once it is locked.
WITH picked AS MATERIALIZED (
    SELECT j.workflow_id FROM dray_jobs AS j WHERE j.workflow_id $in_ids(ids) AND $stays IS NOT TRUE $skip_locked
)
SELECT w.id FROM (SELECT workflow_id AS id, count(*) AS jobs FROM picked GROUP BY workflow_id) AS w
WHERE w.jobs = (SELECT count(*) FROM dray_jobs AS j WHERE j.workflow_id = w.id)

-- name: workflow_job_delete
-- As `job_delete`, of workflows that go whole.
DELETE FROM dray_jobs
WHERE id $in_ids(ids) AND state <> 'running' AND NOT fanout_pending
    AND NOT $needed_beyond(dray_jobs)
RETURNING id

-- name: workflow_prune
-- Removes workflows that have no jobs left.
DELETE FROM dray_workflows WHERE id $in_ids(ids)
    AND NOT EXISTS (SELECT 1 FROM dray_jobs AS j WHERE j.workflow_id = dray_workflows.id)
