-- Where a running body is: who wants to know asks in dray_stacks, the worker that runs it answers in the same row.
-- Rows live for seconds; no reference to the job, because every job that is ever removed would be looked up here.

CREATE TABLE dray_stacks (
    id          uuid NOT NULL PRIMARY KEY,
    job_id      uuid NOT NULL,
    claim       integer NOT NULL,
    worker_id   uuid NOT NULL,
    asked_at    timestamptz NOT NULL,
    answered_at timestamptz,
    stack       text,
    CONSTRAINT stack_answered CHECK ((answered_at IS NULL) = (stack IS NULL))
);
CREATE INDEX dray_stacks_asked ON dray_stacks (worker_id) WHERE answered_at IS NULL;

-- Of the jobs a schedule makes; none: the task's, else the queue's.
ALTER TABLE dray_schedules ADD COLUMN priority integer;
