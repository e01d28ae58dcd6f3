-- put_back_unrun: turn the lines of an ended batch that were claimed and have no result back into work: the spans that they
-- were in were deleted when the batch was cancelled or expired. Lines past the cursors need nothing: an open lane is enough.
-- Returns how many lines were put back. In a batch that runs in steps they are held back, and its next steps run them.
--
-- A line that had failed attempts continues after them. A line that a provider may have accepted has the same attempt as then,
-- and its span says so again (`lost_submissions`). `anew` and `span_items` as in put_back_failed.
--
-- Runs under the lock on the batch row, and before put_back_failed, which deletes results. Locks: the rows of lost_submissions.
-- Cost: one pass over the ordinals of the results.
WITH
lost AS (
    DELETE FROM batchline.lost_submissions AS l
    WHERE l.batch_id = %(batch)s
    RETURNING l.lane_id, l.submission, l.ordinals
),
claimed AS (
    SELECT
        n.id AS lane_id,
        o.ordinal,
        lag(o.ordinal, 1, -1) OVER (PARTITION BY n.id ORDER BY o.ordinal) AS before
    FROM batchline.lanes AS n
    CROSS JOIN LATERAL (
        SELECT r.ordinal FROM batchline.results AS r WHERE r.lane_id = n.id
        UNION ALL
        SELECT n.next
    ) AS o
    WHERE n.batch_id = %(batch)s
),
line AS (
    SELECT c.lane_id, l.ordinal, coalesce(past.attempt, 0) + 1 AS attempt
    FROM claimed AS c
    CROSS JOIN LATERAL generate_series(c.before + 1, c.ordinal - 1) AS l (ordinal)
    LEFT JOIN LATERAL (
        SELECT a.attempt
        FROM batchline.retry_attempts AS a
        WHERE a.lane_id = c.lane_id AND a.ordinal = l.ordinal
        ORDER BY a.attempt DESC
        LIMIT 1
    ) AS past ON true
    WHERE c.before + 1 < c.ordinal
),
block AS (
    SELECT lane_id, attempt, range_agg(int4range(ordinal, ordinal + 1)) AS ordinals, count(*) AS size
    FROM line
    GROUP BY lane_id, attempt, ordinal / %(span_items)s::integer
),
again AS (
    INSERT INTO batchline.spans (lane_id, batch_id, outstanding, attempt, attempts_before, submission, available_at)
    SELECT
        block.lane_id,
        %(batch)s,
        part.ordinals,
        block.attempt,
        CASE WHEN %(anew)s THEN block.attempt - 1 ELSE 0 END,
        part.submission,
        CASE WHEN b.step_total IS NULL THEN now() ELSE '9999-12-31 00:00:00+00' END
    FROM block
    JOIN batchline.batches AS b ON b.id = %(batch)s
    CROSS JOIN LATERAL (
        SELECT lost.submission, block.ordinals * lost.ordinals AS ordinals FROM lost WHERE lost.lane_id = block.lane_id
        UNION ALL
        SELECT NULL, block.ordinals - coalesce(range_agg(lost.ordinals), '{}') FROM lost WHERE lost.lane_id = block.lane_id
    ) AS part
    WHERE NOT isempty(part.ordinals)
)
SELECT coalesce(sum(size), 0)::integer AS lines FROM block
