-- name: doctor_pages
-- Pages in all, their size, those that are unused, and what becomes of these (0: they stay in the file).
SELECT c.page_count, s.page_size, f.freelist_count, a.auto_vacuum
FROM pragma_page_count AS c, pragma_page_size AS s, pragma_freelist_count AS f, pragma_auto_vacuum AS a

-- name: doctor_integrity
-- What is wrong with the file, a line each; one that says ok if nothing is.
SELECT quick_check FROM pragma_quick_check(10)
