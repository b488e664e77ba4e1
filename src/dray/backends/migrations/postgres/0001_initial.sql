-- The first schema, the same tables and meanings as on SQLite. Instants are timestamptz, ids uuid. Large args and
-- results stay in the row: TOAST keeps them out of the way of a change of state. The tables with churn are
-- vacuumed by rows changed, not by share of the table: history would otherwise put it off for hours.

CREATE TABLE dray_meta (
    name  text NOT NULL PRIMARY KEY,
    value text NOT NULL
);

CREATE TABLE dray_jobs (
    id                  uuid NOT NULL PRIMARY KEY,
    task                text NOT NULL,
    queue               text NOT NULL,
    state               text NOT NULL,
    reason              text,
    priority            integer NOT NULL,
    run_at              timestamptz NOT NULL,
    attempt             integer NOT NULL DEFAULT 0,
    max_attempts        integer NOT NULL,
    crashes             integer NOT NULL DEFAULT 0,
    max_crashes         integer NOT NULL,
    claim               integer NOT NULL DEFAULT 0,
    worker_id           uuid,
    timeout             double precision,
    expires_at          timestamptz,
    unique_key          text,
    unique_lock         text,
    unique_until        timestamptz,
    unique_scope        text,
    workflow_id         uuid,
    step                text,
    waiting_on          integer NOT NULL DEFAULT 0,
    on_parent_failure   text NOT NULL DEFAULT 'cancel',
    fanout_pending      boolean NOT NULL DEFAULT FALSE,
    schedule            text,
    slot                timestamptz,
    progress            double precision,
    progress_message    text,
    cancel_requested_at timestamptz,
    name                text,
    description         text,
    tags                text,
    trace               text,
    created_at          timestamptz NOT NULL,
    updated_at          timestamptz NOT NULL,
    started_at          timestamptz,
    finished_at         timestamptz,
    error               text,
    args                text,
    result              text,
    CONSTRAINT job_names CHECK (task <> '' AND queue <> ''),
    CONSTRAINT job_state CHECK (state IN
        ('waiting', 'scheduled', 'queued', 'running', 'parked', 'completed', 'failed', 'cancelled')),
    CONSTRAINT job_running CHECK (state <> 'running' OR (worker_id IS NOT NULL AND started_at IS NOT NULL)),
    CONSTRAINT job_unstarted CHECK
        (state NOT IN ('waiting', 'scheduled', 'queued', 'parked') OR worker_id IS NULL),
    CONSTRAINT job_finished CHECK ((state IN ('completed', 'failed', 'cancelled')) = (finished_at IS NOT NULL)),
    CONSTRAINT job_reason CHECK ((state IN ('failed', 'cancelled')) = (reason IS NOT NULL)),
    CONSTRAINT job_counts CHECK
        (attempt >= 0 AND max_attempts >= 1 AND crashes >= 0 AND max_crashes >= 1 AND waiting_on >= 0)
) WITH (
    fillfactor = 80, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_insert_scale_factor = 0.2, autovacuum_analyze_scale_factor = 0.05
);

CREATE INDEX dray_jobs_ready ON dray_jobs (queue, task, priority DESC, run_at, id) WHERE state = 'queued';
CREATE INDEX dray_jobs_due ON dray_jobs (run_at) WHERE state = 'scheduled';
CREATE INDEX dray_jobs_running ON dray_jobs (worker_id) WHERE state = 'running';
CREATE INDEX dray_jobs_waiting ON dray_jobs (id) WHERE state = 'waiting';
CREATE UNIQUE INDEX dray_jobs_unique ON dray_jobs (unique_lock) WHERE unique_lock IS NOT NULL;
CREATE INDEX dray_jobs_finished ON dray_jobs (state, finished_at) WHERE finished_at IS NOT NULL;
CREATE INDEX dray_jobs_expires ON dray_jobs (expires_at)
    WHERE expires_at IS NOT NULL AND state IN ('waiting', 'scheduled', 'queued');
CREATE INDEX dray_jobs_fanout ON dray_jobs (id) WHERE fanout_pending;
CREATE UNIQUE INDEX dray_jobs_step ON dray_jobs (workflow_id, step) WHERE workflow_id IS NOT NULL;
CREATE INDEX dray_jobs_schedule ON dray_jobs (schedule)
    WHERE schedule IS NOT NULL AND state IN ('waiting', 'scheduled', 'queued', 'running');

CREATE TABLE dray_attempts (
    job_id        uuid NOT NULL REFERENCES dray_jobs (id) ON DELETE CASCADE,
    claim         integer NOT NULL,
    attempt       integer NOT NULL,
    worker_id     uuid,
    outcome       text NOT NULL,
    error_type    text,
    error_message text,
    traceback     text,
    started_at    timestamptz,
    finished_at   timestamptz,
    PRIMARY KEY (job_id, claim)
);

-- satisfied: 0 the parent has not ended, 1 the child need not wait for it any more, -1 it ended otherwise.
CREATE TABLE dray_edges (
    parent_id uuid NOT NULL REFERENCES dray_jobs (id) ON DELETE CASCADE,
    child_id  uuid NOT NULL REFERENCES dray_jobs (id) ON DELETE CASCADE,
    satisfied smallint NOT NULL DEFAULT 0,
    PRIMARY KEY (parent_id, child_id),
    CONSTRAINT edge_satisfied CHECK (satisfied IN (-1, 0, 1)),
    CONSTRAINT edge_self CHECK (parent_id <> child_id)
);
CREATE INDEX dray_edges_child ON dray_edges (child_id);
CREATE INDEX dray_edges_open ON dray_edges (parent_id) WHERE satisfied = 0;

CREATE TABLE dray_workflows (
    id         uuid NOT NULL PRIMARY KEY,
    name       text NOT NULL,
    created_at timestamptz NOT NULL
);

CREATE TABLE dray_queues (
    name       text NOT NULL PRIMARY KEY,
    priority   integer NOT NULL DEFAULT 0,
    paused_at  timestamptz,
    created_at timestamptz NOT NULL,
    CONSTRAINT queue_name CHECK (name <> '')
);

CREATE TABLE dray_workers (
    id           uuid NOT NULL PRIMARY KEY,
    name         text NOT NULL,
    host         text NOT NULL,
    pid          integer NOT NULL,
    boot         text NOT NULL,
    lock         text,
    queues       text NOT NULL,
    tasks        text NOT NULL,
    concurrency  integer NOT NULL,
    state        text NOT NULL,
    started_at   timestamptz NOT NULL,
    last_seen_at timestamptz NOT NULL,
    lease_until  timestamptz NOT NULL,
    stopped_at   timestamptz,
    CONSTRAINT worker_stopped CHECK ((state IN ('stopped', 'dead')) = (stopped_at IS NOT NULL))
);

CREATE TABLE dray_leases (
    duty     text NOT NULL PRIMARY KEY,
    holder   uuid,
    term     integer NOT NULL,
    taken_at timestamptz NOT NULL
);

CREATE TABLE dray_schedules (
    name          text NOT NULL PRIMARY KEY,
    task          text NOT NULL,
    queue         text,
    args          text NOT NULL,
    cron          text,
    every_us      bigint,
    tz            text NOT NULL,
    misfire       text NOT NULL,
    misfire_limit integer NOT NULL,
    overlap       text NOT NULL,
    next_at       timestamptz,
    last_at       timestamptz,
    created_at    timestamptz NOT NULL,
    updated_at    timestamptz NOT NULL,
    paused_at     timestamptz,
    CONSTRAINT schedule_rule CHECK ((cron IS NULL) <> (every_us IS NULL))
);
CREATE INDEX dray_schedules_due ON dray_schedules (next_at) WHERE next_at IS NOT NULL AND paused_at IS NULL;

CREATE TABLE dray_logs (
    seq     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    job_id  uuid NOT NULL REFERENCES dray_jobs (id) ON DELETE CASCADE,
    claim   integer NOT NULL,
    at      timestamptz NOT NULL,
    level   text NOT NULL,
    logger  text NOT NULL,
    message text NOT NULL
);
CREATE INDEX dray_logs_job ON dray_logs (job_id, seq);

CREATE VIEW dray_v_jobs AS
SELECT id, task, queue, state, reason, priority, attempt, max_attempts, run_at, created_at, started_at, finished_at,
    finished_at - started_at AS duration,
    progress, error, name, tags, workflow_id, step, schedule, unique_key, worker_id, args, result
FROM dray_jobs;

CREATE VIEW dray_v_attempts AS
SELECT job_id, attempt, claim, worker_id, outcome, error_type, error_message, started_at, finished_at,
    finished_at - started_at AS duration
FROM dray_attempts;

CREATE VIEW dray_v_queues AS
SELECT q.name, q.priority, q.paused_at,
    (SELECT count(*) FROM dray_jobs AS j WHERE j.queue = q.name AND j.state = 'queued') AS queued
FROM dray_queues AS q;

CREATE VIEW dray_v_workers AS
SELECT w.id, w.name, w.host, w.pid, w.state, w.queues, w.concurrency,
    (SELECT count(*) FROM dray_jobs AS j WHERE j.worker_id = w.id AND j.state = 'running') AS running,
    w.started_at, w.last_seen_at, w.stopped_at
FROM dray_workers AS w;

CREATE VIEW dray_v_schedules AS
SELECT name, task, cron, every_us * interval '1 microsecond' AS every, tz, misfire, overlap, next_at, last_at, paused_at
FROM dray_schedules;

CREATE VIEW dray_v_logs AS
SELECT job_id, claim, at, level, logger, message FROM dray_logs;
