-- freeze_finished: begin to finalize a batch whose lines all have an outcome. Returns whether it was frozen now.
--
-- The last settle does this. This function repairs a batch for which that did not happen: a row restored or changed by
-- hand, or a bug.
--
-- Locks: the batch row, waiting; then, if lines were left out, the lanes in id order. What is left is read by a later statement, which sees what the last settle committed.
CREATE FUNCTION batchline.freeze_finished_v1(batch uuid) RETURNS boolean
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    PERFORM batchline.require_read_committed_v1();
    PERFORM
    FROM batchline.batches AS b
    WHERE b.id = batch AND b.finalizing_at IS NULL AND b.ended_at IS NULL AND NOT b.accepting
    FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM
    FROM batchline.current_batches AS c
    WHERE c.id = batch
      AND c.completed + c.failed + c.left_out = c.total
      AND NOT EXISTS (SELECT FROM batchline.spans AS s WHERE s.batch_id = batch);
    IF NOT FOUND OR batchline.collect_v1(batch) THEN
        RETURN false;
    END IF;
    IF batchline.freeze_v1(batch) THEN
        PERFORM FROM batchline.lanes AS n WHERE n.batch_id = batch ORDER BY n.id FOR NO KEY UPDATE;
        UPDATE batchline.lanes AS n SET open = false WHERE n.batch_id = batch AND n.open;
    END IF;
    RETURN true;
END
$$;
