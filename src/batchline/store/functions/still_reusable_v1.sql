-- still_reusable: which of these batches have answers that are there to be used now, in the snapshot of the calling statement.
--
-- Reads by key, though the caller has switched nested loops off. No locks.
CREATE FUNCTION batchline.still_reusable_v1(batches uuid[]) RETURNS uuid[]
LANGUAGE sql STABLE
SET enable_nestloop = on
AS $$
SELECT array_agg(b.id) FROM batchline.reusable_batches AS b WHERE b.id = ANY (batches)
$$;
