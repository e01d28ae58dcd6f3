-- endpoints_of_file: the urls of a file's lines.
SELECT DISTINCT p.url
FROM batchline.files AS f
JOIN batchline.file_lanes AS p ON p.file_no = f.no
WHERE f.id = %(file)s
ORDER BY p.url
