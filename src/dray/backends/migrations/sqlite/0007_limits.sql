-- Limits and turns. A ready job with a key is 'parked' and not 'queued': keys take turns, and a key whose limit is reached
-- must not stand in the way of the others. People see both as queued. `held` marks what runs under a limit or with a key:
-- these rows are counted, so that no number has to be kept, and none can be left behind by a crash.
ALTER TABLE dray_jobs ADD COLUMN key TEXT;
ALTER TABLE dray_jobs ADD COLUMN held INTEGER NOT NULL DEFAULT FALSE;

CREATE INDEX dray_jobs_turns ON dray_jobs (queue, task, priority DESC, key, run_at, id) WHERE state = 'parked';
CREATE INDEX dray_jobs_held ON dray_jobs (key, task, queue) WHERE held;
-- Code of an earlier release queues jobs whatever their key. Empty otherwise.
CREATE INDEX dray_jobs_unparked ON dray_jobs (key) WHERE state = 'queued' AND key IS NOT NULL;

-- As dray_jobs_expires and dray_jobs_schedule, with parked jobs; those two stay for workers of the release before.
CREATE INDEX dray_jobs_expiring ON dray_jobs (expires_at)
    WHERE expires_at IS NOT NULL AND state IN ('waiting', 'scheduled', 'queued', 'parked');
CREATE INDEX dray_jobs_live_schedule ON dray_jobs (schedule)
    WHERE schedule IS NOT NULL AND state IN ('waiting', 'scheduled', 'queued', 'parked', 'running');

-- One rule a row: at most `most` jobs at the same time (period_us 0), or starts in any period. Code declares rules, and
-- an operator's override all those of its kind; `in_force` says which of them count. An override without `most` lifts.
CREATE TABLE dray_limits (
    scope      TEXT NOT NULL,
    name       TEXT NOT NULL,
    kind       TEXT NOT NULL,
    source     TEXT NOT NULL,
    period_us  INTEGER NOT NULL,
    most       INTEGER,
    in_force   INTEGER NOT NULL,
    changed_at INTEGER NOT NULL,
    PRIMARY KEY (scope, name, kind, source, period_us),
    CONSTRAINT limit_scope CHECK (scope IN ('task', 'queue')),
    CONSTRAINT limit_source CHECK (source IN ('declared', 'override')),
    CONSTRAINT limit_most CHECK (most IS NOT NULL OR NOT in_force)
) STRICT, WITHOUT ROWID;

-- How many attempts started under a rate, by slices of a hundredth of its period. `at` is the end of a slice, so that
-- none is forgotten too soon. An empty key: of all jobs together.
CREATE TABLE dray_starts (
    scope     TEXT NOT NULL,
    name      TEXT NOT NULL,
    key       TEXT NOT NULL,
    period_us INTEGER NOT NULL,
    at        INTEGER NOT NULL,
    n         INTEGER NOT NULL,
    PRIMARY KEY (scope, name, key, period_us, at),
    CONSTRAINT starts_counted CHECK (n > 0)
) STRICT, WITHOUT ROWID;

-- The newest tables that a worker's code knows. NULL: a worker of a release that does not know limits.
ALTER TABLE dray_workers ADD COLUMN knows INTEGER;

DROP VIEW dray_v_jobs;
CREATE VIEW dray_v_jobs AS
SELECT j.id, j.task, j.queue, CASE j.state WHEN 'parked' THEN 'queued' ELSE j.state END AS state, j.reason, j.priority,
    j.attempt, j.max_attempts,
    datetime(j.run_at / 1000000, 'unixepoch') AS run_at,
    datetime(j.created_at / 1000000, 'unixepoch') AS created_at,
    datetime(j.started_at / 1000000, 'unixepoch') AS started_at,
    datetime(j.finished_at / 1000000, 'unixepoch') AS finished_at,
    round((j.finished_at - j.started_at) / 1e6, 3) AS seconds,
    j.progress, j.error, j.name, j.tags, j.workflow_id, j.step, j.schedule, j.unique_key, j.worker_id,
    coalesce(j.args, p.args) AS args, coalesce(j.result, p.result) AS result, j.key
FROM dray_jobs AS j LEFT JOIN dray_payloads AS p ON p.job_id = j.id;

DROP VIEW dray_v_queues;
CREATE VIEW dray_v_queues AS
SELECT q.name, q.priority, datetime(q.paused_at / 1000000, 'unixepoch') AS paused_at,
    (SELECT count(*) FROM dray_jobs AS j WHERE j.queue = q.name AND j.state = 'queued')
        + (SELECT count(*) FROM dray_jobs AS j WHERE j.queue = q.name AND j.state = 'parked') AS queued
FROM dray_queues AS q;
