-- begin_step: let the next step of a batch run, if it is time for it. Returns the number of its lines; 0: nothing to do.
--
-- Lines that no step has begun with are held back: past the cursor of a lane that is `drained`, so that claims take no fresh
-- lines of it, or, after a reuse or a sample, in a free span that is available in the year 9999. The lines of a step are put
-- into free spans, from where claims take them as any other; the last step opens the lanes instead. So a step costs one row
-- per 2,000 lines at most, and claims do not know of steps.
--
-- A step has lines of every lane, in proportion to what each has left, and in the order of the file within a lane. If the
-- batch has a sample, that is its first step: random lines (draw_sample).
--
-- The settle that ends a step sets `next_step_at`, in its own transaction (end_step); then any worker may call this, at any
-- time. A second call finds that `next_step_at` is not set any more. A batch that is paused, held or closing begins no step.
--
-- Locks: the spans that are held back, in id order; the batch row; its lanes in id order.
CREATE FUNCTION batchline.begin_step_v1(batch uuid) RETURNS integer
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_variable
DECLARE
    held_back CONSTANT timestamptz := '9999-12-31 00:00:00+00';
    chunk CONSTANT integer := 2000;
    facts record;
    size integer;
    sampling boolean;
BEGIN
    PERFORM batchline.require_read_committed_v1();
    -- Nothing is locked for a batch without a step that is due.
    PERFORM FROM batchline.batches AS b WHERE b.id = batch AND b.next_step_at <= now();
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    PERFORM
    FROM batchline.spans AS s
    WHERE s.batch_id = batch AND s.worker_id IS NULL AND s.available_at = held_back
    ORDER BY s.id
    FOR UPDATE;
    PERFORM FROM batchline.batches AS b WHERE b.id = batch FOR NO KEY UPDATE;
    SELECT b.step, b.step_total, b.step_began_at, b.total - b.left_out - b.step_total AS rest, b.total - b.reused AS lines,
        b.settings -> 'steps' AS steps
    INTO facts
    FROM batchline.batches AS b
    WHERE b.id = batch
      AND b.next_step_at <= now()
      AND b.paused_at IS NULL AND b.held_at IS NULL
      AND b.cancelling_at IS NULL AND b.expiring_at IS NULL AND b.finalizing_at IS NULL;
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    PERFORM FROM batchline.lanes AS n WHERE n.batch_id = batch ORDER BY n.id FOR NO KEY UPDATE;

    sampling := facts.steps ? 'sample' AND facts.step = 0 AND facts.step_began_at IS NULL;
    IF sampling THEN
        size := batchline.draw_sample_v1(batch, (facts.steps ->> 'sample')::integer, chunk);
    ELSE
        size := least(facts.rest, batchline.step_size_v1(facts.steps, facts.step + 1, facts.lines));
        IF size = facts.rest THEN
            UPDATE batchline.spans AS s
            SET available_at = now()
            WHERE s.batch_id = batch AND s.worker_id IS NULL AND s.available_at = held_back;
            UPDATE batchline.lanes AS n SET drained = n.next = n.total WHERE n.batch_id = batch;
        ELSE
            WITH
            span AS MATERIALIZED (
                SELECT s.*, batchline.span_size(s.outstanding) AS items
                FROM batchline.spans AS s
                WHERE s.batch_id = batch AND s.worker_id IS NULL AND s.available_at = held_back
            ),
            lane AS (
                SELECT n.id, n.next, waiting.items AS held, waiting.items + n.total - n.next AS rest
                FROM batchline.lanes AS n
                CROSS JOIN LATERAL (
                    SELECT coalesce(sum(span.items), 0) AS items FROM span WHERE span.lane_id = n.id
                ) AS waiting
                WHERE n.batch_id = batch
            ),
            portion AS (
                SELECT lane.*, size::numeric * lane.rest / facts.rest AS exact FROM lane
            ),
            -- What the fractions add up to goes to the lanes with the largest ones.
            share AS (
                SELECT
                    p.id,
                    p.next,
                    p.held,
                    (
                        floor(p.exact) + CASE
                            WHEN row_number() OVER (ORDER BY p.exact - floor(p.exact) DESC, p.id)
                                <= size - sum(floor(p.exact)) OVER ()
                            THEN 1
                            ELSE 0
                        END
                    )::integer AS lines
                FROM portion AS p
            ),
            -- Lines that are held back in spans come before the cursor.
            wanted AS (
                SELECT ordered.*, least(ordered.items, share.lines - ordered.before)::integer AS take
                FROM (
                    SELECT
                        span.*,
                        sum(span.items) OVER (PARTITION BY span.lane_id ORDER BY lower(span.outstanding), span.id)
                        - span.items AS before
                    FROM span
                ) AS ordered
                JOIN share ON share.id = ordered.lane_id
                WHERE ordered.before < share.lines
            ),
            whole AS (
                UPDATE batchline.spans AS s SET available_at = now() FROM wanted WHERE s.id = wanted.id AND wanted.take = wanted.items
            ),
            split AS (
                UPDATE batchline.spans AS s
                SET outstanding = wanted.outstanding - batchline.span_head(wanted.outstanding, wanted.take)
                FROM wanted
                WHERE s.id = wanted.id AND wanted.take < wanted.items
            ),
            head AS (
                INSERT INTO batchline.spans (lane_id, batch_id, outstanding, attempt, attempts_before, submission)
                SELECT w.lane_id, w.batch_id, batchline.span_head(w.outstanding, w.take), w.attempt, w.attempts_before, w.submission
                FROM wanted AS w
                WHERE w.take < w.items
            ),
            fresh AS (
                SELECT share.id, share.next, (share.next + share.lines - share.held)::integer AS stop
                FROM share
                WHERE share.lines > share.held
            ),
            moved AS (
                UPDATE batchline.lanes AS n SET next = fresh.stop FROM fresh WHERE n.id = fresh.id
            )
            INSERT INTO batchline.spans (lane_id, batch_id, outstanding)
            SELECT fresh.id, batch, int4multirange(int4range(first, least(first + chunk, fresh.stop)))
            FROM fresh
            CROSS JOIN LATERAL generate_series(fresh.next, fresh.stop - 1, chunk) AS first;
        END IF;
    END IF;
    UPDATE batchline.batches AS b
    SET step = b.step + CASE WHEN sampling THEN 0 ELSE 1 END,
        step_total = CASE WHEN size < facts.rest THEN b.step_total + size END,
        step_began_at = now(),
        next_step_at = NULL
    WHERE b.id = batch;
    PERFORM pg_notify('batchline', 'open ' || batch);
    RETURN size;
END
$$;
