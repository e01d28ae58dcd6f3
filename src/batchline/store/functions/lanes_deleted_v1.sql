-- lanes_deleted: note which lanes are gone, so that maintenance deletes what else there is of their batch.
--
-- Runs once for each statement that deletes rows of lanes: by hand, or by the cascade of a deleted batch. Without it, rows
-- of deleted batches could be found only by reading all of `results`.
CREATE FUNCTION batchline.lanes_deleted_v1() RETURNS trigger
LANGUAGE plpgsql
AS $$
BEGIN
    INSERT INTO batchline.deleted_lanes (lane_id, batch_id) SELECT id, batch_id FROM gone ON CONFLICT DO NOTHING;
    RETURN NULL;
END
$$;
