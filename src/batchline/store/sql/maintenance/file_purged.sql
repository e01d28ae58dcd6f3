-- file_purged: mark a deleted file as purged, unless lines are left because another worker still deletes them.
UPDATE batchline.files AS f
SET purged_at = now()
WHERE f.id = %(file)s
  AND f.deleted_at IS NOT NULL
  AND NOT EXISTS (SELECT FROM batchline.file_lanes AS p WHERE p.file_no = f.no)
