-- keep_adopted_lanes: after a rollback, the reserved lanes are not deleted ones: maintenance must not delete their results,
-- and a second cutover creates these lanes again.
--
-- Runs after remove_adopted, in its transaction: the trigger that notes deleted lanes fires when that statement ends. The
-- locks of the caller exclude drop_deleted_lanes, which locks spans. Locks: these rows.
DELETE FROM batchline.deleted_lanes AS d USING batchline.adopted_lanes AS n WHERE n.lane_id = d.lane_id
