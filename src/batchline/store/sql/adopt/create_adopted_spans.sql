-- create_adopted_spans: put unfinished items below the cursors of the lanes just created into free spans: those of one attempt
-- and one time together, at most `span_items` ordinals apart, so that no claim has to rewrite a large multirange.
--
-- Items above the cursor are pending and have no row. So [0, next) is results and spans, disjoint. A frozen batch has no
-- spans. Locks: only its own rows.
INSERT INTO batchline.spans (lane_id, batch_id, outstanding, attempt, available_at)
SELECT
    item.lane_id,
    item.batch_id,
    range_agg(int4range(item.ordinal, item.ordinal + 1)),
    item.attempt,
    item.available_at
FROM (
    SELECT
        n.lane_id,
        n.batch_id,
        a.ordinal,
        r.retry_attempt + 1 AS attempt,
        CASE WHEN r.state = 'pending' AND r.not_before > now() THEN r.not_before ELSE now() END AS available_at
    FROM batchline.adopted_batches AS b
    JOIN batchline.batches AS made ON made.id = b.batch_id AND made.finalizing_at IS NULL
    JOIN batchline.source_requests AS r ON r.batch_id = b.batch_id
    JOIN batchline.adopted_lines AS a ON a.template_id = r.template_id
    JOIN batchline.adopted_lanes AS n ON n.batch_id = b.batch_id AND n.lane_no = a.lane_no
    WHERE b.reason IS NULL AND r.state IN ('pending', 'claimed', 'processing') AND a.ordinal < n.next
) AS item
GROUP BY item.lane_id, item.batch_id, item.attempt, item.available_at, item.ordinal / %(span_items)s::integer
