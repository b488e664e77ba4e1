-- Where the class of an attempt's error is, as an import needs it: shop.mail.Bounced. NULL: a worker of an earlier release
-- has recorded the attempt, or it did not end with an error.
ALTER TABLE dray_attempts ADD COLUMN error_class TEXT;
