-- claim_tasks: of a provider's upstream, give `worker` the tasks that are due, up to `max_items` lines, and say how many other
-- lines it may be given so that no more than `max_tasks` become tasks.
--
-- A line counts as a task from the moment that a worker holds it until it has a result: being submitted, or parked, or with
-- an unknown submission. So the limit holds across all workers, whenever one of them dies.
--
-- Locks: an advisory one for the scope, until the claim commits, so that two workers cannot both be given the last room;
-- nothing else is held before it. Then the worker's row and spans, as in claim.
-- Cost: one index entry per task of the upstream, up to `max_tasks`.
CREATE FUNCTION batchline.claim_tasks_v1(
    worker uuid, worker_name text, lease interval,
    keys text[], excluded text[], below text[], batch uuid, expired uuid[], max_items integer, max_tasks integer
) RETURNS TABLE (spans bigint[], room integer)
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_column
DECLARE
    due bigint[];
    lane bigint;
    claimed record;
    taken integer := 0;
    tasks integer;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('batchline tasks ' || coalesce(keys::text, excluded::text), 0));
    spans := '{}';
    due := ARRAY (SELECT r.lane_id FROM batchline.returned_lanes_v1(keys, excluded, below, batch, expired) AS r);
    IF cardinality(due) > 0 THEN
        PERFORM batchline.renew_lease_v1(worker, worker_name, lease);
    END IF;
    FOREACH lane IN ARRAY due LOOP
        EXIT WHEN taken >= max_items;
        SELECT array_agg(c.span_id) AS spans, coalesce(sum(c.items), 0)::integer AS items INTO claimed
        FROM batchline.claim_returned_v1(worker, lane, expired, max_items - taken, true) AS c;
        spans := spans || claimed.spans;
        taken := taken + claimed.items;
    END LOOP;

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
    room := least(max_items - taken, max_tasks - tasks);
    RETURN NEXT;
END
$$;
