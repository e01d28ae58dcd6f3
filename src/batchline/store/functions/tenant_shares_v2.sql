-- tenant_shares: how many of `room` lines each waiting tenant gets, by what it has in flight with live workers.
--
-- fair_shares is called with the room as the number that waits, and then called again with each tenant that has less
-- than its share: the rest is for the others. So no tenant's lines are counted beyond its share. Lines in a provider's chunk are not
-- counted as in flight: they use no slot, for hours. No locks.
-- Cost: one read of the spans in flight, and what waiting_lanes costs.
CREATE FUNCTION batchline.tenant_shares_v2(
    tenants text[], tenant_keys text[], returned bigint[], expired uuid[],
    keys text[], excluded text[], below text[], batch uuid, room integer,
    without uuid[] DEFAULT '{}'
) RETURNS TABLE (tenant text, share integer)
LANGUAGE plpgsql STABLE
AS $$
#variable_conflict use_column
DECLARE
    names text[];
    in_flight bigint[];
    waiting bigint[];
    sharers text[];
    shares integer[];
    found bigint[];
BEGIN
    SELECT array_agg(t.name ORDER BY t.items, t.name), array_agg(t.items ORDER BY t.items, t.name)
    INTO names, in_flight
    FROM (
        SELECT w.name, coalesce(sum(held.items), 0)::bigint AS items
        FROM (SELECT DISTINCT unnest(tenants)) AS w (name)
        LEFT JOIN (
            SELECT n.tenant, in_lane.items
            FROM (
                SELECT s.lane_id, sum(upper(piece) - lower(piece)) AS items
                FROM batchline.spans AS s
                CROSS JOIN LATERAL unnest(s.outstanding) AS piece
                WHERE s.worker_id IS NOT NULL AND s.worker_id <> ALL (expired)
                  AND (s.task_id IS NULL OR NOT starts_with(s.task_id, 'chunk:'))
                GROUP BY s.lane_id
            ) AS in_lane
            CROSS JOIN LATERAL (SELECT * FROM batchline.lanes WHERE lanes.id = in_lane.lane_id LIMIT 1) AS n
        ) AS held ON held.tenant = w.name
        GROUP BY w.name
        -- There is nothing for more tenants than lines.
        ORDER BY items, w.name
        LIMIT room
    ) AS t;
    waiting := array_fill(room::bigint, ARRAY[cardinality(names)]);
    LOOP
        SELECT array_agg(f.tenant), array_agg(f.share) INTO sharers, shares
        FROM batchline.fair_shares_v1(names, in_flight, waiting, room) AS f;
        SELECT array_agg(
            CASE WHEN coalesce(l.items, 0) < s.share THEN coalesce(l.items, 0) ELSE w.items END ORDER BY w.nth
        ) INTO found
        FROM unnest(names, waiting) WITH ORDINALITY AS w (name, items, nth)
        LEFT JOIN unnest(sharers, shares) AS s (name, share) ON s.name = w.name
        LEFT JOIN (
            SELECT lane.tenant, sum(lane.items)::bigint AS items
            FROM batchline.waiting_lanes_v2(
                tenants, tenant_keys, sharers, shares, returned, expired, keys, excluded, below, batch, without
            ) AS lane
            GROUP BY lane.tenant
        ) AS l ON l.tenant = w.name;
        EXIT WHEN found = waiting;
        waiting := found;
    END LOOP;
    RETURN QUERY SELECT * FROM unnest(sharers, shares);
END
$$;
