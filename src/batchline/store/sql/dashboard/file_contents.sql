-- file_contents: the models and urls of the lines of files, in the order of `files`, for lists. Of a file with very many models, only
-- the first `lanes` are looked at. The caller has checked that the files may be seen.
--
-- Cost: for each file, one row and `lanes` rows by key. Locks: none.
SELECT wanted.id, coalesce(found.models, '{}') AS models, coalesce(found.urls, '{}') AS urls
FROM unnest(%(files)s::uuid[]) WITH ORDINALITY AS wanted (id, nth)
CROSS JOIN LATERAL (SELECT f.no FROM batchline.files AS f WHERE f.id = wanted.id LIMIT 1) AS file
CROSS JOIN LATERAL (
    SELECT array_agg(DISTINCT lane.model ORDER BY lane.model) AS models, array_agg(DISTINCT lane.url ORDER BY lane.url) AS urls
    FROM (
        SELECT p.model, p.url
        FROM batchline.file_lanes AS p
        WHERE p.file_no = file.no
        ORDER BY p.lane_no
        LIMIT %(lanes)s
    ) AS lane
) AS found
ORDER BY wanted.nth
