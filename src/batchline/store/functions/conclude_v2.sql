-- conclude: wait for every transaction that has locked a span of the batch, then conclude_now.
--
-- Locks: the spans in id order, waiting; then as conclude_now.
CREATE FUNCTION batchline.conclude_v2(batch uuid) RETURNS boolean
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    PERFORM
    FROM batchline.batches AS b
    WHERE b.id = batch AND (b.cancelling_at IS NOT NULL OR b.expiring_at IS NOT NULL) AND b.finalizing_at IS NULL;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM FROM batchline.spans AS s WHERE s.batch_id = batch ORDER BY s.id FOR UPDATE;
    RETURN batchline.conclude_now_v2(batch);
END
$$;
