-- file_purged: nothing is left of a deleted file but its row. Not so if another one still clears its lines away.
UPDATE batchline.files AS f
SET purged_at = now()
WHERE f.id = %(file)s
  AND f.deleted_at IS NOT NULL
  AND NOT EXISTS (SELECT FROM batchline.file_lanes AS p WHERE p.file_no = f.no)
