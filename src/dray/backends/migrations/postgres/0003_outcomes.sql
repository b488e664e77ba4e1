-- What keeps a live worker from working, in its own words; NULL: nothing does. Each beat writes it.

ALTER TABLE dray_workers ADD COLUMN trouble text;

-- How bodies ended whose workers had to go while another transaction had locked the jobs' rows: the worker that takes such a
-- job back writes that instead of a crash. Mostly empty. No reference to the job: it would wait for that transaction.

CREATE TABLE dray_outcomes (
    job_id    uuid NOT NULL,
    claim     integer NOT NULL,
    worker_id uuid NOT NULL,
    left_at   timestamptz NOT NULL,
    outcome   text NOT NULL,
    PRIMARY KEY (job_id, claim)
);
