-- What a producer hands to the worker that runs the job, beside its arguments: a JSON object of strings. Nearly always NULL.
-- It takes the place of `trace`, which nothing has ever written: that stays, for workers of the release before.
ALTER TABLE dray_jobs ADD COLUMN headers TEXT;

-- Of one job, instead of its task's: a retry policy and exception types, as JSON; how long it is kept once it has ended.
ALTER TABLE dray_jobs ADD COLUMN retry TEXT;
ALTER TABLE dray_jobs ADD COLUMN keep_us INTEGER;

-- When such a job may go. Jobs that are kept as all others are, are not in it.
CREATE INDEX dray_jobs_kept ON dray_jobs (finished_at + keep_us) WHERE keep_us IS NOT NULL AND finished_at IS NOT NULL;
