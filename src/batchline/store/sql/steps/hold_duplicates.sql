-- hold_duplicates: hold the duplicates back that a retry has put back: all spans of the batch are divided into duplicates and
-- others, which can be claimed at once. Does nothing in a batch without duplicates.
--
-- A failed leader and its duplicates have the same code and cause, so a retry selects all of them or none. A duplicate that
-- never ran may have a leader that is done: it is answered as soon as nothing else is left to run.
--
-- Runs after reopen_batch, in the same transaction: the batch has just been opened, so no worker has seen its spans. Locks: its
-- spans, which only this transaction knows, and the batch row, which it has locked before.
WITH
part AS MATERIALIZED (
    SELECT
        d.lane_id,
        d.first,
        d.line_nos,
        (SELECT range_agg(int4range(ordinal, ordinal + 1)) FROM unnest(d.ordinals) AS ordinal) AS ordinals
    FROM batchline.duplicates AS d
    WHERE d.batch_id = %(batch)s
),
gone AS (
    DELETE FROM batchline.spans AS s
    WHERE s.batch_id = %(batch)s AND EXISTS (SELECT FROM part)
    RETURNING s.id, s.lane_id, s.outstanding, s.attempt, s.attempts_before, s.submission
),
held AS MATERIALIZED (
    SELECT gone.*, gone.outstanding * part.ordinals AS ordinals
    FROM gone
    JOIN part ON part.lane_id = gone.lane_id AND part.ordinals && gone.outstanding
),
kept AS (
    SELECT
        gone.*,
        gone.outstanding
        - coalesce((SELECT range_agg(held.ordinals) FROM held WHERE held.id = gone.id), '{}') AS ordinals
    FROM gone
),
back AS (
    INSERT INTO batchline.spans (lane_id, batch_id, outstanding, attempt, attempts_before, submission, available_at)
    SELECT lane_id, %(batch)s, ordinals, attempt, attempts_before, submission, now() FROM kept WHERE NOT isempty(ordinals)
    UNION ALL
    SELECT lane_id, %(batch)s, ordinals, attempt, attempts_before, submission, '9999-12-31 00:00:00+00' FROM held
),
counted AS (
    SELECT
        (SELECT coalesce(sum(batchline.span_size(held.ordinals)), 0) FROM held)::integer AS held,
        (
            SELECT count(*)
            FROM part
            CROSS JOIN LATERAL unnest(part.line_nos) AS each (no)
            CROSS JOIN LATERAL (
                SELECT FROM batchline.results AS r WHERE r.lane_id = part.lane_id AND r.line_no = each.no LIMIT 1
            ) AS answer
        )::integer AS answered
)
UPDATE batchline.batches AS b
SET duplicates = counted.answered,
    step_total = CASE WHEN counted.held > 0 THEN b.total - b.left_out - counted.held END,
    next_step_at = CASE
        WHEN counted.held > 0 AND b.completed + b.failed = b.total - b.left_out - counted.held THEN now()
    END
FROM counted
WHERE b.id = %(batch)s AND EXISTS (SELECT FROM part)
