-- deleted_files: a page of deleted files whose data may still exist, oldest first. Excludes files with a batch that has
-- not ended: its error file may still need lines that never ran; and adopted files until the adoption is finished: a
-- second cutover needs their lines.
--
-- `after` is the last file of the previous page. Locks: none; no new batch can be created over these files
-- (delete_file).
SELECT f.id, f.no, f.object_key
FROM batchline.files AS f
LEFT JOIN batchline.files AS a ON a.id = %(after)s::uuid
WHERE f.deleted_at IS NOT NULL
  AND f.purged_at IS NULL
  AND (%(after)s::uuid IS NULL OR (f.deleted_at, f.id) > (a.deleted_at, a.id))
  AND NOT EXISTS (SELECT FROM batchline.batches AS b WHERE b.file_id = f.id AND b.ended_at IS NULL)
  AND NOT EXISTS (SELECT FROM batchline.adopted_files AS adopted WHERE adopted.file_no = f.no)
ORDER BY f.deleted_at, f.id
LIMIT %(limit)s
