-- The first schema. Instants are whole microseconds since 1970 UTC; ids are UUIDv7 in their text form, so that
-- text order is time order. The dray_v_* views at the end show the same in words for people at a SQL prompt.

CREATE TABLE dray_meta (
    name  TEXT NOT NULL PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- A rowid table: against WITHOUT ROWID it was as fast or faster at every size of arguments measured.
-- args and result over 1 KiB live in dray_payloads, so that a change of state does not rewrite them.
CREATE TABLE dray_jobs (
    id                  TEXT NOT NULL PRIMARY KEY,
    task                TEXT NOT NULL,
    queue               TEXT NOT NULL,
    state               TEXT NOT NULL,
    reason              TEXT,
    priority            INTEGER NOT NULL,
    run_at              INTEGER NOT NULL,
    attempt             INTEGER NOT NULL DEFAULT 0,
    max_attempts        INTEGER NOT NULL,
    crashes             INTEGER NOT NULL DEFAULT 0,
    max_crashes         INTEGER NOT NULL,
    claim               INTEGER NOT NULL DEFAULT 0,
    worker_id           TEXT,
    timeout             REAL,
    expires_at          INTEGER,
    unique_key          TEXT,
    unique_lock         TEXT,
    unique_until        INTEGER,
    unique_scope        TEXT,
    workflow_id         TEXT,
    step                TEXT,
    waiting_on          INTEGER NOT NULL DEFAULT 0,
    on_parent_failure   TEXT NOT NULL DEFAULT 'cancel',
    fanout_pending      INTEGER NOT NULL DEFAULT FALSE,
    schedule            TEXT,
    slot                INTEGER,
    progress            REAL,
    progress_message    TEXT,
    cancel_requested_at INTEGER,
    name                TEXT,
    description         TEXT,
    tags                TEXT,
    trace               TEXT,
    created_at          INTEGER NOT NULL,
    updated_at          INTEGER NOT NULL,
    started_at          INTEGER,
    finished_at         INTEGER,
    error               TEXT,
    args                TEXT,
    result              TEXT,
    CONSTRAINT job_names CHECK (length(id) = 36 AND task <> '' AND queue <> ''),
    CONSTRAINT job_state CHECK (state IN
        ('waiting', 'scheduled', 'queued', 'running', 'parked', 'completed', 'failed', 'cancelled')),
    CONSTRAINT job_running CHECK (state <> 'running' OR (worker_id IS NOT NULL AND started_at IS NOT NULL)),
    CONSTRAINT job_unstarted CHECK
        (state NOT IN ('waiting', 'scheduled', 'queued', 'parked') OR worker_id IS NULL),
    CONSTRAINT job_finished CHECK ((state IN ('completed', 'failed', 'cancelled')) = (finished_at IS NOT NULL)),
    CONSTRAINT job_reason CHECK ((state IN ('failed', 'cancelled')) = (reason IS NOT NULL)),
    CONSTRAINT job_counts CHECK
        (attempt >= 0 AND max_attempts >= 1 AND crashes >= 0 AND max_crashes >= 1 AND waiting_on >= 0)
) STRICT;

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

CREATE TABLE dray_payloads (
    job_id TEXT NOT NULL PRIMARY KEY REFERENCES dray_jobs (id) ON DELETE CASCADE,
    args   TEXT,
    result TEXT
) STRICT;

CREATE TABLE dray_attempts (
    job_id        TEXT NOT NULL REFERENCES dray_jobs (id) ON DELETE CASCADE,
    claim         INTEGER NOT NULL,
    attempt       INTEGER NOT NULL,
    worker_id     TEXT,
    outcome       TEXT NOT NULL,
    error_type    TEXT,
    error_message TEXT,
    traceback     TEXT,
    started_at    INTEGER,
    finished_at   INTEGER,
    PRIMARY KEY (job_id, claim)
) STRICT;

-- satisfied: 0 the parent has not ended, 1 the child need not wait for it any more, -1 it ended otherwise.
CREATE TABLE dray_edges (
    parent_id TEXT NOT NULL REFERENCES dray_jobs (id) ON DELETE CASCADE,
    child_id  TEXT NOT NULL REFERENCES dray_jobs (id) ON DELETE CASCADE,
    satisfied INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (parent_id, child_id),
    CONSTRAINT edge_satisfied CHECK (satisfied IN (-1, 0, 1)),
    CONSTRAINT edge_self CHECK (parent_id <> child_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX dray_edges_child ON dray_edges (child_id);
CREATE INDEX dray_edges_open ON dray_edges (parent_id) WHERE satisfied = 0;

CREATE TABLE dray_workflows (
    id         TEXT NOT NULL PRIMARY KEY,
    name       TEXT NOT NULL,
    created_at INTEGER NOT NULL
) STRICT;

CREATE TABLE dray_queues (
    name       TEXT NOT NULL PRIMARY KEY,
    priority   INTEGER NOT NULL DEFAULT 0,
    paused_at  INTEGER,
    created_at INTEGER NOT NULL,
    CONSTRAINT queue_name CHECK (name <> '')
) STRICT, WITHOUT ROWID;

-- lease_until is a reading of the machine's steady clock, comparable only between rows of one boot.
CREATE TABLE dray_workers (
    id           TEXT NOT NULL PRIMARY KEY,
    name         TEXT NOT NULL,
    host         TEXT NOT NULL,
    pid          INTEGER NOT NULL,
    boot         TEXT NOT NULL,
    lock         TEXT,
    queues       TEXT NOT NULL,
    tasks        TEXT NOT NULL,
    concurrency  INTEGER NOT NULL,
    state        TEXT NOT NULL,
    started_at   INTEGER NOT NULL,
    last_seen_at INTEGER NOT NULL,
    lease_until  INTEGER NOT NULL,
    stopped_at   INTEGER,
    CONSTRAINT worker_stopped CHECK ((state IN ('stopped', 'dead')) = (stopped_at IS NOT NULL))
) STRICT, WITHOUT ROWID;

CREATE TABLE dray_leases (
    duty     TEXT NOT NULL PRIMARY KEY,
    holder   TEXT,
    term     INTEGER NOT NULL,
    taken_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE dray_schedules (
    name          TEXT NOT NULL PRIMARY KEY,
    task          TEXT NOT NULL,
    queue         TEXT,
    args          TEXT NOT NULL,
    cron          TEXT,
    every_us      INTEGER,
    tz            TEXT NOT NULL,
    misfire       TEXT NOT NULL,
    misfire_limit INTEGER NOT NULL,
    overlap       TEXT NOT NULL,
    next_at       INTEGER,
    last_at       INTEGER,
    created_at    INTEGER NOT NULL,
    updated_at    INTEGER NOT NULL,
    paused_at     INTEGER,
    CONSTRAINT schedule_rule CHECK ((cron IS NULL) <> (every_us IS NULL))
) STRICT, WITHOUT ROWID;
CREATE INDEX dray_schedules_due ON dray_schedules (next_at) WHERE next_at IS NOT NULL AND paused_at IS NULL;

CREATE TABLE dray_logs (
    seq     INTEGER PRIMARY KEY AUTOINCREMENT,
    job_id  TEXT NOT NULL REFERENCES dray_jobs (id) ON DELETE CASCADE,
    claim   INTEGER NOT NULL,
    at      INTEGER NOT NULL,
    level   TEXT NOT NULL,
    logger  TEXT NOT NULL,
    message TEXT NOT NULL
) STRICT;
CREATE INDEX dray_logs_job ON dray_logs (job_id, seq);

CREATE VIEW dray_v_jobs AS
SELECT j.id, j.task, j.queue, j.state, j.reason, j.priority, j.attempt, j.max_attempts,
    datetime(j.run_at / 1000000, 'unixepoch') AS run_at,
    datetime(j.created_at / 1000000, 'unixepoch') AS created_at,
    datetime(j.started_at / 1000000, 'unixepoch') AS started_at,
    datetime(j.finished_at / 1000000, 'unixepoch') AS finished_at,
    round((j.finished_at - j.started_at) / 1e6, 3) AS seconds,
    j.progress, j.error, j.name, j.tags, j.workflow_id, j.step, j.schedule, j.unique_key, j.worker_id,
    coalesce(j.args, p.args) AS args, coalesce(j.result, p.result) AS result
FROM dray_jobs AS j LEFT JOIN dray_payloads AS p ON p.job_id = j.id;

CREATE VIEW dray_v_attempts AS
SELECT job_id, attempt, claim, worker_id, outcome, error_type, error_message,
    datetime(started_at / 1000000, 'unixepoch') AS started_at,
    datetime(finished_at / 1000000, 'unixepoch') AS finished_at,
    round((finished_at - started_at) / 1e6, 3) AS seconds
FROM dray_attempts;

CREATE VIEW dray_v_queues AS
SELECT q.name, q.priority, datetime(q.paused_at / 1000000, 'unixepoch') AS paused_at,
    (SELECT count(*) FROM dray_jobs AS j WHERE j.queue = q.name AND j.state = 'queued') AS queued
FROM dray_queues AS q;

CREATE VIEW dray_v_workers AS
SELECT w.id, w.name, w.host, w.pid, w.state, w.queues, w.concurrency,
    (SELECT count(*) FROM dray_jobs AS j WHERE j.worker_id = w.id AND j.state = 'running') AS running,
    datetime(w.started_at / 1000000, 'unixepoch') AS started_at,
    datetime(w.last_seen_at / 1000000, 'unixepoch') AS last_seen_at,
    datetime(w.stopped_at / 1000000, 'unixepoch') AS stopped_at
FROM dray_workers AS w;

CREATE VIEW dray_v_schedules AS
SELECT name, task, cron, every_us / 1e6 AS every_seconds, tz, misfire, overlap,
    datetime(next_at / 1000000, 'unixepoch') AS next_at,
    datetime(last_at / 1000000, 'unixepoch') AS last_at,
    datetime(paused_at / 1000000, 'unixepoch') AS paused_at
FROM dray_schedules;

CREATE VIEW dray_v_logs AS
SELECT job_id, claim, strftime('%Y-%m-%d %H:%M:%f', at / 1e6, 'unixepoch') AS at, level, logger, message
FROM dray_logs;
