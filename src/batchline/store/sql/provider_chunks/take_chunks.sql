-- take_chunks: see the function take_chunks_v1. Locks: those of the function.
SELECT * FROM batchline.take_chunks_v1(
    %(worker)s, %(name)s, %(lease)s, %(keys)s::text[], %(excluded)s::text[], %(below)s::text[], %(batch)s::uuid,
    %(max_chunks)s::integer, %(base_url)s::text, %(api)s::text
)
