-- What people did to jobs, queues and schedules, by the command line, the dashboard or an agent. A row is written in the
-- transaction of what it tells; a bulk action adds up done and refused with each of its chunks.
CREATE TABLE dray_actions (
    id      uuid NOT NULL PRIMARY KEY,
    at      timestamptz NOT NULL,
    who     text NOT NULL,
    via     text NOT NULL,
    verb    text NOT NULL,
    kind    text NOT NULL,
    target  text NOT NULL,
    note    text,
    done    integer NOT NULL,
    refused integer NOT NULL,
    CONSTRAINT action_counts CHECK (done >= 0 AND refused >= 0)
);
CREATE INDEX dray_actions_target ON dray_actions (kind, target, id);

-- Failed jobs with the same key failed alike: the same task, the same type of error, the same message but for numbers
-- and names in it. Written with the failure, cleared when the job starts over.
ALTER TABLE dray_jobs ADD COLUMN error_key text;
CREATE INDEX dray_jobs_error ON dray_jobs (error_key, finished_at) WHERE error_key IS NOT NULL;

-- How many jobs ended in a minute or an hour, and how long they had waited and run: counts by class of time
-- (`model/rollup.py`), as JSON. They stay when the jobs are removed.
CREATE TABLE dray_rollups (
    span    text NOT NULL,
    at      timestamptz NOT NULL,
    queue   text NOT NULL,
    task    text NOT NULL,
    outcome text NOT NULL,
    jobs    bigint NOT NULL,
    waited  text NOT NULL,
    ran     text NOT NULL,
    PRIMARY KEY (span, at, queue, task, outcome),
    CONSTRAINT rollup_span CHECK (span IN ('minute', 'hour')),
    CONSTRAINT rollup_outcome CHECK (outcome IN ('completed', 'failed', 'cancelled')),
    CONSTRAINT rollup_jobs CHECK (jobs > 0)
);

-- The jobs of a schedule and the runs of a workflow, newest first, however many others there are.
CREATE INDEX dray_jobs_of_schedule ON dray_jobs (schedule, id) WHERE schedule IS NOT NULL;
CREATE INDEX dray_workflows_name ON dray_workflows (name, id);

-- The attempts that ended with their worker: what became of the jobs of a dead one. No other attempt is in it.
CREATE INDEX dray_attempts_crashed ON dray_attempts (worker_id) WHERE outcome = 'crashed';
