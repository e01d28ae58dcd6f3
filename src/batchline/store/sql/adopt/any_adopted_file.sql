-- any_adopted_file: one of the files that were numbered: what an abandoned adoption has left to delete. Locks: none.
SELECT file_no FROM batchline.adopted_files ORDER BY file_no LIMIT 1
