-- lock_lanes: lock lanes for a claim, in id order. Returns those that were locked.
--
-- Waits for lanes with an id above `above`, the highest that this claim has locked before: another claim holds a lane for
-- a millisecond only, and this worker must not go idle for that. Skips lower ones that are locked: to wait for them would
-- be out of order, and two claims could wait for each other.
CREATE FUNCTION batchline.lock_lanes_v1(lanes bigint[], above bigint) RETURNS bigint[]
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    RETURN ARRAY (
        SELECT n.id
        FROM batchline.lanes AS n
        WHERE n.id = ANY (lanes) AND n.id <= above
        ORDER BY n.id
        FOR NO KEY UPDATE SKIP LOCKED
    ) || ARRAY (
        SELECT n.id
        FROM batchline.lanes AS n
        WHERE n.id = ANY (lanes) AND n.id > above
        ORDER BY n.id
        FOR NO KEY UPDATE
    );
END
$$;
