-- form_chunk: see the function form_chunk_v1. Locks: those of the function.
SELECT * FROM batchline.form_chunk_v1(
    %(worker)s, %(spans)s::bigint[], %(chunk)s, %(key)s, %(max_lines)s::integer, %(max_bytes)s::bigint, %(overhead)s::integer,
    %(max_chunks)s::integer, %(max_tokens)s::bigint, %(tokens_per_byte)s::float8,
    %(base_url)s::text, %(api)s::text
)
