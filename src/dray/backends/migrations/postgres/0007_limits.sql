-- Limits and turns. A ready job with a key is 'parked' and not 'queued': keys take turns, and a key whose limit is reached
-- must not stand in the way of the others. People see both as queued. `held` marks what runs under a limit or with a key:
-- these rows are counted, so that no number has to be kept, and none can be left behind by a crash.
ALTER TABLE dray_jobs ADD COLUMN key text COLLATE "C";
ALTER TABLE dray_jobs ADD COLUMN held boolean NOT NULL DEFAULT FALSE;

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
    scope      text NOT NULL,
    name       text NOT NULL,
    kind       text NOT NULL,
    source     text NOT NULL,
    period_us  bigint NOT NULL,
    most       integer,
    in_force   boolean NOT NULL,
    changed_at timestamptz NOT NULL,
    PRIMARY KEY (scope, name, kind, source, period_us),
    CONSTRAINT limit_scope CHECK (scope IN ('task', 'queue')),
    CONSTRAINT limit_source CHECK (source IN ('declared', 'override')),
    CONSTRAINT limit_most CHECK (most IS NOT NULL OR NOT in_force)
);

-- How many attempts started under a rate, by slices of a hundredth of its period. `at` is the end of a slice, so that
-- none is forgotten too soon. An empty key: of all jobs together.
CREATE TABLE dray_starts (
    scope     text NOT NULL,
    name      text NOT NULL,
    key       text COLLATE "C" NOT NULL,
    period_us bigint NOT NULL,
    at        timestamptz NOT NULL,
    n         integer NOT NULL,
    PRIMARY KEY (scope, name, key, period_us, at),
    CONSTRAINT starts_counted CHECK (n > 0)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

-- The newest tables that a worker's code knows. NULL: a worker of a release that does not know limits.
ALTER TABLE dray_workers ADD COLUMN knows integer;

CREATE OR REPLACE VIEW dray_v_jobs AS
SELECT id, task, queue, CASE state WHEN 'parked' THEN 'queued' ELSE state END AS state, reason, priority, attempt,
    max_attempts, run_at, created_at, started_at, finished_at, finished_at - started_at AS duration,
    progress, error, name, tags, workflow_id, step, schedule, unique_key, worker_id, args, result, key
FROM dray_jobs;

CREATE OR REPLACE VIEW dray_v_queues AS
SELECT q.name, q.priority, q.paused_at,
    (SELECT count(*) FROM dray_jobs AS j WHERE j.queue = q.name AND j.state IN ('queued', 'parked')) AS queued
FROM dray_queues AS q;
