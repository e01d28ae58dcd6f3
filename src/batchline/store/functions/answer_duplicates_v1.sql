-- answer_duplicates: give duplicates of a batch the results of their leaders (arrange_lines), those of one span at most.
-- Returns how many got one, and the span; no span: none is left after the span `after`.
--
-- When all other lines have ended, this is the batch's next step, and takes one call per span or more. A duplicate whose leader
-- has no result then runs itself, so that no batch is stuck. `early`: the others still run; only duplicates with an answer get
-- it. So a batch that is about to be closed keeps what is known.
--
-- A result is a copy with the duplicate's custom_id and id. Its tokens and its cost are zero: they were spent once. If the leader
-- has failed, the duplicate has failed for the same cause, and counts. No rule pauses the batch for it: nothing is sent. A call
-- copies no more than 16 MiB, apart from the last result.
--
-- Locks: one span, skipping locked ones; then the batch row; and if it ends without lines that were left out, its lanes in id
-- order. No other statement takes a span that is held back, so what its lines get is decided once.
CREATE FUNCTION batchline.answer_duplicates_v1(
    batch uuid, early boolean, after bigint, OUT answered integer, OUT span_id bigint
)
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_column
DECLARE
    held_back CONSTANT timestamptz := '9999-12-31 00:00:00+00';
    max_bytes CONSTANT integer := 16 * 1024 * 1024;
    candidate bigint;
    locked boolean := false;
    span record;
    facts record;
    copied record;
    counted record;
    rest int4multirange;
    released integer := 0;
BEGIN
    PERFORM batchline.require_read_committed_v1();
    answered := 0;
    -- By spans_free: the free spans of a lane that are held back, in the order of their ids.
    FOR candidate IN
        SELECT waiting.id
        FROM batchline.lanes AS n
        CROSS JOIN LATERAL (
            SELECT s.id
            FROM batchline.spans AS s
            WHERE s.worker_id IS NULL AND s.lane_id = n.id AND s.available_at = held_back AND s.id > after
            OFFSET 0
        ) AS waiting
        WHERE n.batch_id = batch
        ORDER BY waiting.id
    LOOP
        SELECT s.id, s.lane_id, s.outstanding, s.attempt, n.file_no, n.lane_no INTO span
        FROM batchline.spans AS s
        JOIN batchline.lanes AS n ON n.id = s.lane_id
        WHERE s.id = candidate AND s.worker_id IS NULL AND s.available_at = held_back
        FOR UPDATE OF s SKIP LOCKED;
        locked := FOUND;
        EXIT WHEN locked;
    END LOOP;
    IF NOT locked THEN
        RETURN;
    END IF;
    PERFORM FROM batchline.batches AS b WHERE b.id = batch FOR NO KEY UPDATE;
    SELECT c.total - c.left_out AS total, c.step_total, c.completed + c.failed AS ended INTO facts
    FROM batchline.current_batches AS c
    WHERE c.id = batch
      AND c.step_total IS NOT NULL
      AND (early OR (c.next_step_at <= now() AND c.paused_at IS NULL))
      AND c.held_at IS NULL AND c.cancelling_at IS NULL AND c.expiring_at IS NULL AND c.finalizing_at IS NULL;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    span_id := span.id;

    WITH
    part AS (
        SELECT d.ordinals, d.line_nos, d.leaders
        FROM batchline.duplicates AS d
        WHERE d.lane_id = span.lane_id AND d.first <= lower(span.outstanding)
        ORDER BY d.first DESC
        LIMIT 1
    ),
    ready AS MATERIALIZED (
        SELECT each.*, sum(answer.size) OVER (ORDER BY each.ordinal) - answer.size AS before
        FROM part
        CROSS JOIN LATERAL unnest(part.ordinals, part.line_nos, part.leaders) AS each (ordinal, line_no, leader)
        CROSS JOIN LATERAL (
            SELECT octet_length(r.output) AS size
            FROM batchline.results AS r
            WHERE r.lane_id = span.lane_id AND r.line_no = each.leader
            LIMIT 1
        ) AS answer
        WHERE span.outstanding @> each.ordinal
    ),
    result AS (
        INSERT INTO batchline.results
            (lane_id, line_no, ordinal, outcome, status_code, attempt, input_tokens, output_tokens, output, cause)
        SELECT
            span.lane_id, ready.line_no, ready.ordinal, answer.outcome, answer.status_code, span.attempt, 0, 0,
            batchline.copied_line_v1(batch, ready.line_no, line.custom_id, answer.output), answer.cause
        FROM ready
        CROSS JOIN LATERAL (
            SELECT * FROM batchline.results AS r WHERE r.lane_id = span.lane_id AND r.line_no = ready.leader LIMIT 1
        ) AS answer
        CROSS JOIN LATERAL (
            SELECT l.custom_id
            FROM batchline.lines AS l
            WHERE l.file_no = span.file_no AND l.lane_no = span.lane_no AND l.ordinal = ready.ordinal
            LIMIT 1
        ) AS line
        WHERE ready.before < max_bytes
        RETURNING ordinal, outcome, cause
    )
    SELECT
        count(*) FILTER (WHERE outcome = 'completed')::integer AS completed,
        count(*) FILTER (WHERE outcome = 'failed')::integer AS failed,
        coalesce(range_agg(int4range(ordinal, ordinal + 1)), '{}') AS ordinals,
        coalesce(array_agg(ordinal) FILTER (WHERE outcome = 'failed'), '{}') AS failures,
        coalesce(array_agg(cause) FILTER (WHERE outcome = 'failed'), '{}') AS causes,
        (SELECT count(*) FROM ready) = count(*) AS complete
    INTO copied
    FROM result;
    answered := copied.completed + copied.failed;
    rest := span.outstanding - copied.ordinals;
    IF isempty(rest) THEN
        DELETE FROM batchline.spans AS s WHERE s.id = span.id;
    ELSIF copied.complete AND NOT early THEN
        UPDATE batchline.spans AS s SET outstanding = rest, available_at = now() WHERE s.id = span.id;
        released := batchline.span_size(rest);
        PERFORM pg_notify('batchline', 'open ' || batch);
    ELSE
        UPDATE batchline.spans AS s SET outstanding = rest WHERE s.id = span.id AND answered > 0;
    END IF;
    IF answered + released = 0 THEN
        RETURN;
    END IF;
    IF copied.failed > 0 THEN
        PERFORM batchline.count_copied_failures_v1(batch, span.lane_id, copied.failures, copied.causes);
    END IF;
    UPDATE batchline.batches AS b
    SET duplicates = b.duplicates + answered,
        step_total = nullif(b.step_total + answered + released, facts.total),
        next_step_at = CASE
            WHEN released = 0 AND b.step_total + answered < facts.total THEN b.next_step_at
        END
    WHERE b.id = batch;
    SELECT * INTO counted
    FROM batchline.add_counts_v1(batch, copied.completed, copied.failed, 0, 0, 0, 0, 0, 0, 0);
    IF counted.left_out THEN
        PERFORM FROM batchline.lanes AS n WHERE n.batch_id = batch ORDER BY n.id FOR NO KEY UPDATE;
        UPDATE batchline.lanes AS n SET open = false WHERE n.batch_id = batch AND n.open;
    END IF;
    IF counted.finished THEN
        -- No worker settles it, so one that is idle must look.
        PERFORM pg_notify('batchline', 'closed ' || batch);
    END IF;
END
$$;
