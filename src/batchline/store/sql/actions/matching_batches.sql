-- matching_batches: the next batches of an action. See functions/matching_batches_v1.sql.
SELECT m.id, m.created_at
FROM batchline.matching_batches_v1(
    %(tenant)s, %(viewer)s::text, %(words)s::text, %(statuses)s::text[], %(kind)s::text,
    %(model)s::text, %(created_after)s::timestamptz, %(created_before)s::timestamptz, %(ids)s::uuid[],
    %(position_at)s::timestamptz, %(position_id)s::uuid, %(max_batches)s::integer
) AS m
ORDER BY m.created_at DESC, m.id DESC
