-- freeze: start finalizing: no result can be added from now on, so the batch's counters and those of its causes go back to their rows.
--
-- A retry may have left out lines that an earlier end had left without a result (reopen_batch). They are ended as before:
-- the batch is cancelled or expired again, unless it is being closed anyway. Returns whether there are such lines: then the
-- caller closes the lanes. A settle does that when it has locked the rows of all its batches.
--
-- The caller has locked the batch row in a statement before this one. Locks: the fed lanes, which no claim locks.
CREATE FUNCTION batchline.freeze_v1(batch uuid) RETURNS boolean
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    unrun integer;
BEGIN
    UPDATE batchline.batches AS b
    SET completed = c.completed,
        failed = c.failed,
        input_tokens = c.input_tokens,
        cached_tokens = c.cached_tokens,
        output_tokens = c.output_tokens,
        reasoning_tokens = c.reasoning_tokens,
        cost = c.cost,
        finalizing_at = now(),
        cancelling_at = CASE
            WHEN b.left_out_as = 'cancelled' AND b.expiring_at IS NULL THEN coalesce(b.cancelling_at, now())
            ELSE b.cancelling_at
        END,
        expiring_at = CASE
            WHEN b.left_out_as = 'expired' AND b.cancelling_at IS NULL THEN coalesce(b.expiring_at, now())
            ELSE b.expiring_at
        END,
        left_out = 0,
        left_out_as = NULL,
        total = c.total,
        added_bytes = c.added_bytes,
        accepting = false
    FROM batchline.current_batches AS c
    WHERE b.id = batch AND c.id = batch
    RETURNING c.left_out INTO unrun;
    DELETE FROM batchline.counters WHERE batch_id = batch;
    UPDATE batchline.lanes AS n
    SET next = c.next, total = c.next
    FROM batchline.current_lanes AS c
    WHERE n.batch_id = batch AND n.fed AND c.id = n.id AND c.next <> n.total;
    DELETE FROM batchline.cursors AS c USING batchline.lanes AS n WHERE n.batch_id = batch AND n.fed AND c.lane_id = n.id;
    UPDATE batchline.failure_causes AS f
    SET failed = c.failed
    FROM batchline.current_failure_causes AS c
    WHERE f.batch_id = batch AND c.batch_id = batch AND c.key = f.key AND c.failed <> f.failed;
    DELETE FROM batchline.cause_counts WHERE batch_id = batch;
    RETURN unrun > 0;
END
$$;
