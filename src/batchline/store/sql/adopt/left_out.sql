-- left_out: what an adoption leaves in the old tables: batches that it cannot adopt, with the reason and their unfinished
-- requests; and requests without a batch, in one row without an id. Locks: none.
SELECT b.id, coalesce(a.reason, CASE WHEN b.deleted_at IS NULL THEN 'its file or the file''s lines are gone' ELSE 'it was deleted' END),
    count(r.id) FILTER (WHERE r.state IN ('pending', 'claimed', 'processing'))::integer
FROM batchline.source_batches AS b
LEFT JOIN batchline.adopted_batches AS a ON a.batch_id = b.id
LEFT JOIN batchline.source_requests AS r ON r.batch_id = b.id
WHERE a.batch_id IS NULL OR a.reason IS NOT NULL
GROUP BY b.id, a.reason, b.deleted_at
UNION ALL
SELECT NULL, 'they have no batch', count(*) FILTER (WHERE r.state IN ('pending', 'claimed', 'processing'))::integer
FROM batchline.source_requests AS r
WHERE r.batch_id IS NULL
HAVING count(*) > 0
ORDER BY 3 DESC, 1
