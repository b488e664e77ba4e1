-- What keeps a live worker from working, in its own words; NULL: nothing does. Each beat writes it.

ALTER TABLE dray_workers ADD COLUMN trouble text;
