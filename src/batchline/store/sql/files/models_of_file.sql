-- models_of_file: the models of a file's lines.
SELECT DISTINCT p.model
FROM batchline.files AS f
JOIN batchline.file_lanes AS p ON p.file_no = f.no
WHERE f.id = %(file)s
ORDER BY p.model
