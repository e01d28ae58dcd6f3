-- deleted_files: a page of deleted files of which something may be left, oldest first, but for those whose lines
-- a batch still needs: until it has ended, for its error file may yet be made of lines that never ran.
--
-- `after` is the last file of the page before. Locks: none; no new batch can come (delete_file).
SELECT f.id, f.no, f.object_key
FROM batchline.files AS f
LEFT JOIN batchline.files AS a ON a.id = %(after)s::uuid
WHERE f.deleted_at IS NOT NULL
  AND f.purged_at IS NULL
  AND (%(after)s::uuid IS NULL OR (f.deleted_at, f.id) > (a.deleted_at, a.id))
  AND NOT EXISTS (SELECT FROM batchline.batches AS b WHERE b.file_id = f.id AND b.ended_at IS NULL)
ORDER BY f.deleted_at, f.id
LIMIT %(limit)s
