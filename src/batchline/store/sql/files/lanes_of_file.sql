-- lanes_of_file: the lanes of a file, with the keys of its lines.
SELECT p.file_no, p.lane_no, p.url
FROM batchline.files AS f
JOIN batchline.file_lanes AS p ON p.file_no = f.no
WHERE f.id = %(file)s
ORDER BY p.lane_no
