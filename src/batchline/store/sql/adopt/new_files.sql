-- new_files: old input files that have templates and no number yet. Output files have no templates. Locks: none.
SELECT f.id
FROM batchline.source_files AS f
WHERE coalesce(f.purpose, 'batch') = 'batch'
  AND NOT EXISTS (SELECT FROM batchline.adopted_files AS a WHERE a.file_id = f.id)
  AND EXISTS (SELECT FROM batchline.source_templates AS t WHERE t.file_id = f.id)
ORDER BY f.id
