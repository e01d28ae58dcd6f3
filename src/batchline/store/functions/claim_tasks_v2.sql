-- claim_tasks: of a provider's upstream, give `worker` the tasks that are due, up to `max_items` lines, and say how many other
-- lines it may be given so that no more than `max_tasks` become tasks (task_room).
--
-- `marks`: where each of these spans was sent before (claim_returned).
--
-- What is claimed here counts as tasks before and after, so the room is the same.
--
-- Locks: that of task_room. Then the worker's row and spans, as in claim.
CREATE FUNCTION batchline.claim_tasks_v2(
    worker uuid, worker_name text, lease interval,
    keys text[], excluded text[], below text[], batch uuid, expired uuid[], max_items integer, max_tasks integer,
    sender text
) RETURNS TABLE (spans bigint[], marks text[], room integer)
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_column
DECLARE
    due bigint[];
    lane bigint;
    claimed record;
    taken integer := 0;
BEGIN
    room := batchline.task_room_v1(keys, excluded, below, max_tasks);
    spans := '{}';
    marks := '{}';
    due := ARRAY (SELECT r.lane_id FROM batchline.returned_lanes_v2(keys, excluded, below, batch, expired) AS r);
    IF cardinality(due) > 0 THEN
        PERFORM batchline.renew_lease_v1(worker, worker_name, lease);
    END IF;
    FOREACH lane IN ARRAY due LOOP
        EXIT WHEN taken >= max_items;
        SELECT
            array_agg(c.span_id) AS spans, array_agg(c.sent_to) AS marks, coalesce(sum(c.items), 0)::integer AS items
        INTO claimed
        FROM batchline.claim_returned_v2(worker, lane, expired, max_items - taken, sender, true) AS c;
        spans := spans || claimed.spans;
        marks := marks || claimed.marks;
        taken := taken + claimed.items;
    END LOOP;
    room := least(max_items - taken, room);
    RETURN NEXT;
END
$$;
