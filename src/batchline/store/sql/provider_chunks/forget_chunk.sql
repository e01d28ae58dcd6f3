-- forget_chunk: a chunk without a batch is cancelled at the provider; if its batch still exists, it is kept as done. Locks: its row.
WITH
done AS (
    UPDATE batchline.provider_chunks AS c
    SET state = 'done', error = coalesce(c.error, 'its batch ended before it'), updated_at = now()
    WHERE c.id = %(chunk)s::uuid AND c.state <> 'done' AND EXISTS (SELECT FROM batchline.batches AS b WHERE b.id = c.batch_id)
    RETURNING c.id
)
DELETE FROM batchline.provider_chunks AS c
WHERE c.id = %(chunk)s::uuid AND NOT EXISTS (SELECT FROM batchline.batches AS b WHERE b.id = c.batch_id)
