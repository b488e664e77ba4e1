-- Where a running body is: who wants to know asks in dray_stacks, the worker that runs it answers in the same row.
-- Rows live for seconds; no reference to the job, because every job that is ever removed would be looked up here.

CREATE TABLE dray_stacks (
    id          TEXT NOT NULL PRIMARY KEY,
    job_id      TEXT NOT NULL,
    claim       INTEGER NOT NULL,
    worker_id   TEXT NOT NULL,
    asked_at    INTEGER NOT NULL,
    answered_at INTEGER,
    stack       TEXT,
    CONSTRAINT stack_answered CHECK ((answered_at IS NULL) = (stack IS NULL))
) STRICT;
CREATE INDEX dray_stacks_asked ON dray_stacks (worker_id) WHERE answered_at IS NULL;

-- Of the jobs a schedule makes; none: the task's, else the queue's.
ALTER TABLE dray_schedules ADD COLUMN priority INTEGER;

-- For lists, newest first: of what went wrong, and of what has tags. No claim and no completion changes either.
CREATE INDEX dray_jobs_failed ON dray_jobs (id) WHERE state IN ('failed', 'cancelled');
CREATE INDEX dray_jobs_tagged ON dray_jobs (id) WHERE tags IS NOT NULL;
