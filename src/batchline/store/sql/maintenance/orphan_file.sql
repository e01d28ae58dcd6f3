-- orphan_file: the number of a file whose row is gone and whose lines are not; drop_file_lines deletes them. No locks.
SELECT p.file_no
FROM batchline.file_lanes AS p
WHERE NOT EXISTS (SELECT FROM batchline.files AS f WHERE f.no = p.file_no)
LIMIT 1
