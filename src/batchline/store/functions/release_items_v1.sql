-- release_items: let a batch accept no more items, and let it run if it was held. Returns whether it accepted items before.
--
-- If all its items have ended, nothing else would freeze it: no settle comes any more. Then workers hear that it is closed, so
-- that one of them polls, and finalizes it.
--
-- Locks: the batch row, then its lanes in id order.
CREATE FUNCTION batchline.release_items_v1(batch uuid) RETURNS boolean
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    facts record;
    frozen boolean;
BEGIN
    PERFORM batchline.require_read_committed_v1();
    PERFORM
    FROM batchline.batches AS b
    WHERE b.id = batch AND b.accepting AND b.finalizing_at IS NULL
    FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    UPDATE batchline.batches AS b SET accepting = false, held_at = NULL WHERE b.id = batch;
    SELECT
        c.paused_at IS NULL AND c.cancelling_at IS NULL AND c.expiring_at IS NULL AS runs,
        c.completed + c.failed + c.left_out = c.total AS done
    INTO facts
    FROM batchline.current_batches AS c
    WHERE c.id = batch;
    PERFORM FROM batchline.lanes AS n WHERE n.batch_id = batch ORDER BY n.id FOR NO KEY UPDATE;
    UPDATE batchline.lanes AS n SET open = true WHERE n.batch_id = batch AND NOT n.open AND facts.runs;
    frozen := facts.done AND NOT batchline.collect_v1(batch);
    IF frozen THEN
        PERFORM batchline.freeze_v1(batch);
    END IF;
    PERFORM pg_notify('batchline', CASE WHEN frozen THEN 'closed ' ELSE 'open ' END || batch);
    RETURN true;
END
$$;
