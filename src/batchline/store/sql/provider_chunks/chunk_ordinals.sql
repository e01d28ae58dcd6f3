-- chunk_ordinals: the lines of a chunk that have no verdict yet, as pairs of first and last, if `worker` holds them. No locks.
SELECT lower(piece), upper(piece) - 1
FROM batchline.spans AS s
CROSS JOIN LATERAL unnest(s.outstanding) AS piece
WHERE s.id = %(span)s AND s.worker_id = %(worker)s
ORDER BY 1
