-- abandoned_chunk: what is to be cancelled at the provider of a chunk whose batch has ended without it. No locks.
SELECT
    c.state, c.file_id, c.provider_batch, c.refused,
    extract(epoch FROM now() - c.creating_at)::float8 AS creating_for,
    extract(epoch FROM c.created_at)::float8 AS created_at,
    c.base_url, c.api
FROM batchline.provider_chunks AS c
WHERE c.id = %(chunk)s::uuid AND c.state <> 'done'
