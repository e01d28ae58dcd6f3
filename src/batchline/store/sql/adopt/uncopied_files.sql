-- uncopied_files: numbered files with lines that are not copied yet. Locks: none.
SELECT file_no, copied, line_count
FROM batchline.adopted_files
WHERE copied < line_count
ORDER BY file_no
