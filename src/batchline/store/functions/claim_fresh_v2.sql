-- claim_fresh: give `worker` up to `max_items` fresh lines of one lane: move its cursor, and insert a span.
--
-- The caller has locked the lane's row, in a statement before this one: so each statement here sees everything that the
-- last holder of that lock has committed. The row itself does not change before the lane is drained. The cursor is
-- appended to `cursors` instead, and the one before it deleted: the newest is the first index entry, however many dead ones
-- a snapshot elsewhere keeps alive behind it (docs/decisions/0014).
--
-- `sender` is written to the span: the upstream that the worker sends its lines to (claim). `newly_marked`: no other claim has
-- written it, so it goes if the lines were not sent (release).
--
-- Returns the span and its items; nothing if the lane is closed or drained meanwhile.
CREATE FUNCTION batchline.claim_fresh_v2(
    worker uuid, lane bigint, max_items integer, sender text, OUT span_id bigint, OUT items integer
)
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    batch uuid;
    first integer;
    lines integer;
BEGIN
    SELECT n.batch_id, n.next, n.total INTO batch, first, lines
    FROM batchline.current_lanes AS n
    WHERE n.id = lane AND n.open AND NOT n.drained;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    items := least(max_items, lines - first);
    IF first + items = lines THEN
        UPDATE batchline.lanes SET next = total, drained = true WHERE id = lane;
    ELSE
        INSERT INTO batchline.cursors (lane_id, next) VALUES (lane, first + items);
    END IF;
    DELETE FROM batchline.cursors WHERE lane_id = lane AND next = first;
    INSERT INTO batchline.spans (lane_id, batch_id, outstanding, worker_id, claimed_at, sent_to, newly_marked)
    VALUES (lane, batch, int4multirange(int4range(first, first + items)), worker, now(), sender, sender IS NOT NULL)
    RETURNING id INTO span_id;
END
$$;
