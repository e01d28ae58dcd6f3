-- preview_action: how many batches match a filter, up to `max_batches`, the newest of them, and how many of their lines have not
-- been sent yet and are in flight. No locks. See functions/matching_batches_v1.sql.
WITH
matching AS MATERIALIZED (
    SELECT *
    FROM batchline.matching_batches_v1(
    %(tenant)s, %(viewer)s::text, %(words)s::text, %(statuses)s::text[], %(kind)s::text,
    %(model)s::text, %(created_after)s::timestamptz, %(created_before)s::timestamptz, %(ids)s::uuid[],
    %(position_at)s::timestamptz, %(position_id)s::uuid, %(max_batches)s::integer
    )
)
SELECT
    (SELECT count(*) FROM matching)::integer AS matching,
    ARRAY (SELECT m.id FROM matching AS m ORDER BY m.created_at DESC, m.id DESC LIMIT %(sample)s::integer) AS sample,
    coalesce((
        SELECT sum(lane.pending)
        FROM matching AS m
        CROSS JOIN LATERAL (
            SELECT sum(n.total - n.next) AS pending FROM batchline.current_lanes AS n WHERE n.batch_id = m.id
        ) AS lane
        WHERE m.open
    ), 0)::bigint AS not_started,
    coalesce((
        SELECT sum(span.held)
        FROM matching AS m
        CROSS JOIN LATERAL (
            SELECT sum(batchline.span_size(s.outstanding)) AS held
            FROM batchline.spans AS s
            WHERE s.batch_id = m.id AND s.worker_id IS NOT NULL
        ) AS span
        WHERE m.open
    ), 0)::bigint AS in_flight
