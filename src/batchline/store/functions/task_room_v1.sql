-- task_room: how many lines of a provider's upstream may become tasks beyond those that count already, so that there are no more
-- than `max_tasks`. Not more than 0 if there is no room.
--
-- A line counts as a task from the moment that a worker holds it until it has a result: being submitted, or parked, or with
-- an unknown submission. So the limit holds across all workers, whenever one of them dies.
--
-- Locks: an advisory one for the scope, until the claim commits, so that two workers cannot both be given the last room;
-- nothing else is held before it. The lines are counted by later statements, which see what its last holder has claimed.
-- Cost: one index entry per task of the upstream, up to `max_tasks`.
CREATE FUNCTION batchline.task_room_v1(keys text[], excluded text[], below text[], max_tasks integer) RETURNS integer
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    tasks integer;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('batchline tasks ' || coalesce(keys::text, excluded::text), 0));
    SELECT count(*) INTO tasks
    FROM (
        SELECT
        FROM batchline.spans AS s
        WHERE s.task_id IS NOT NULL AND keys IS NULL AND batchline.in_scope_v1(s.upstream, keys, excluded, below)
        UNION ALL
        SELECT
        FROM batchline.spans AS s
        WHERE s.task_id IS NOT NULL AND s.upstream = ANY (keys)
        LIMIT max_tasks
    ) AS known;
    SELECT tasks + coalesce(sum(batchline.span_size(s.outstanding)), 0)::integer INTO tasks
    FROM (
        SELECT s.lane_id, s.outstanding
        FROM batchline.spans AS s
        WHERE s.worker_id IS NOT NULL AND s.task_id IS NULL
        UNION ALL
        SELECT s.lane_id, s.outstanding
        FROM batchline.spans AS s
        WHERE s.submission IS NOT NULL AND s.worker_id IS NULL
    ) AS s
    CROSS JOIN LATERAL (SELECT * FROM batchline.lanes WHERE lanes.id = s.lane_id LIMIT 1) AS n
    WHERE batchline.in_scope_v1(n.key, keys, excluded, below);
    RETURN max_tasks - tasks;
END
$$;
