-- doctor_spans: check that outstanding ordinals of spans were claimed, are in only one span, and belong to a batch that
-- still runs; and that the chunk of a span exists and is not done: otherwise no relay takes its lines. Spans are few. Overlaps are found by sorting the ranges of each lane: a range overlaps if it starts
-- before all previous ones have ended.
WITH
span AS (
    SELECT s.*, n.id AS known, n.batch_id AS lane_batch_id, n.next, b.finalizing_at, b.ended_at
    FROM batchline.spans AS s
    LEFT JOIN batchline.current_lanes AS n ON n.id = s.lane_id
    LEFT JOIN batchline.batches AS b ON b.id = n.batch_id
    WHERE (%(batch)s::uuid IS NULL OR s.batch_id = %(batch)s::uuid OR n.batch_id = %(batch)s::uuid)
      -- Maintenance is about to delete these.
      AND NOT EXISTS (SELECT FROM batchline.deleted_lanes AS d WHERE d.lane_id = s.lane_id)
),
piece AS (
    SELECT
        s.lane_batch_id,
        s.lane_id,
        piece,
        max(upper(piece)) OVER (
            PARTITION BY s.lane_id ORDER BY piece ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) AS reached
    FROM span AS s
    CROSS JOIN LATERAL unnest(s.outstanding) AS piece
),
finding AS (
    SELECT
        'span_lane' AS name,
        batch_id,
        lane_id,
        CASE
            WHEN known IS NULL THEN format('span %%s belongs to a lane that does not exist', id)
            ELSE format('span %%s has the wrong batch %%s', id, batch_id)
        END AS message
    FROM span
    WHERE known IS NULL OR batch_id <> lane_batch_id
    UNION ALL
    SELECT
        'span_range',
        lane_batch_id,
        lane_id,
        format('span %%s contains %%s, but only [0,%%s) is claimed', id, outstanding, next)
    FROM span
    WHERE NOT outstanding <@ int4range(0, next)
    UNION ALL
    SELECT 'span_frozen', lane_batch_id, lane_id, format('span %%s still exists, but the batch is frozen or has ended', id)
    FROM span
    WHERE finalizing_at IS NOT NULL OR ended_at IS NOT NULL
    UNION ALL
    SELECT
        'span_chunk',
        lane_batch_id,
        lane_id,
        format('span %%s belongs to the provider''s chunk %%s, which does not exist or is done', id, substr(task_id, 7))
    FROM span
    WHERE starts_with(task_id, 'chunk:')
      AND NOT EXISTS (
          SELECT
          FROM batchline.provider_chunks AS c
          WHERE c.batch_id = span.batch_id AND 'chunk:' || c.id = span.task_id AND c.span_id = span.id AND c.state <> 'done'
      )
    UNION ALL
    SELECT
        'span_overlap',
        lane_batch_id,
        lane_id,
        format('some items are in two spans; the first is item %%s', min(lower(piece)))
    FROM piece
    WHERE lower(piece) < reached
    GROUP BY lane_batch_id, lane_id
)
-- Cut the message: a multirange of thousands of ranges is unreadable.
SELECT name, NULL::uuid AS file_id, batch_id, lane_id, left(message, 500) AS message
FROM finding
ORDER BY name, batch_id, lane_id, message
LIMIT %(max_findings)s
