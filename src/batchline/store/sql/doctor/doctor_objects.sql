-- doctor_objects: a page of the files whose content is in the object store: of all files, or of those of one batch.
SELECT f.id, f.object_key
FROM batchline.files AS f
WHERE f.object_key IS NOT NULL
  AND f.deleted_at IS NULL
  AND (%(after)s::uuid IS NULL OR f.id > %(after)s::uuid)
  AND (
      %(batch)s::uuid IS NULL
      OR f.id IN (
          SELECT unnest(b.earlier_files || ARRAY[b.file_id, b.output_file_id, b.error_file_id])
          FROM batchline.batches AS b
          WHERE b.id = %(batch)s::uuid
      )
  )
ORDER BY f.id
LIMIT %(max_findings)s
