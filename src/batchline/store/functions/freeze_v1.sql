-- freeze: start finalizing: no result can be added from now on, so the batch's counters go back to its row.
--
-- The caller has locked the batch row in a statement before this one.
CREATE FUNCTION batchline.freeze_v1(batch uuid) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    UPDATE batchline.batches AS b
    SET completed = c.completed,
        failed = c.failed,
        input_tokens = c.input_tokens,
        cached_tokens = c.cached_tokens,
        output_tokens = c.output_tokens,
        reasoning_tokens = c.reasoning_tokens,
        cost = c.cost,
        finalizing_at = now()
    FROM batchline.current_batches AS c
    WHERE b.id = batch AND c.id = batch;
    DELETE FROM batchline.counters WHERE batch_id = batch;
END
$$;
