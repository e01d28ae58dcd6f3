-- append_items: add lines to one fed lane of a batch that accepts items. Returns the ordinal of the first one; NULL if the
-- batch accepts none any more: it was released, it is closing or has ended, or it does not exist.
--
-- Safe with settles: both append counters under the lock on the batch row, and each reads what the last holder has
-- committed, in a statement that began after it got the lock.
--
-- Locks: the batch row.
CREATE FUNCTION batchline.append_items_v1(batch uuid, url text, custom_ids text[], bodies text[], bytes bigint) RETURNS integer
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_variable
DECLARE
    first integer;
    total integer;
BEGIN
    PERFORM batchline.require_read_committed_v1();
    PERFORM
    FROM batchline.batches AS b
    WHERE b.id = batch AND b.accepting
      AND b.finalizing_at IS NULL AND b.cancelling_at IS NULL AND b.expiring_at IS NULL
    FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    SELECT c.total INTO total FROM batchline.current_batches AS c WHERE c.id = batch;
    SELECT n.next INTO first FROM batchline.current_lanes AS n WHERE n.batch_id = batch AND n.url = url;
    IF cardinality(bodies) > 0 THEN
        PERFORM batchline.add_counts_v1(batch, 0, 0, 0, 0, 0, 0, 0, cardinality(bodies), bytes);
        PERFORM batchline.emit_v1(batch, total + 1, array_fill(url, ARRAY[cardinality(bodies)]), custom_ids, bodies);
    END IF;
    RETURN first;
END
$$;
