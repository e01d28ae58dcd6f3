-- fair_shares: divide `room` items among tenants, so that the ones with the fewest items in flight reach one common level.
--
-- `in_flight` and `waiting` are each tenant's items, in the order of `tenants`; nobody gets more than is waiting. Think of
-- water that fills vessels: vessel i has its floor at in_flight and its rim at in_flight + waiting. The width of the water
-- changes at floors and rims only, so the amount that fills the vessels up to each of them is a running sum. What does not
-- divide evenly goes, one item each, to the tenants that come first.
CREATE FUNCTION batchline.fair_shares_v1(tenants text[], in_flight bigint[], waiting bigint[], room integer)
RETURNS TABLE (tenant text, share integer)
LANGUAGE sql IMMUTABLE
AS $$
WITH
vessel AS (
    SELECT v.name, v.floor, v.floor + v.depth AS rim
    FROM unnest(tenants, in_flight, waiting) AS v (name, floor, depth)
    WHERE v.depth > 0
),
-- Where the width changes, and by how much.
step AS (
    SELECT height, sum(change) AS change
    FROM (SELECT floor AS height, 1 AS change FROM vessel UNION ALL SELECT rim, -1 FROM vessel) AS edge
    GROUP BY height
),
width AS (
    SELECT height, sum(change) OVER (ORDER BY height) AS width, lead(height) OVER (ORDER BY height) AS next_height
    FROM step
),
filled AS (
    SELECT
        height,
        width,
        coalesce(sum(width * (next_height - height)) OVER (
            ORDER BY height ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ), 0) AS below
    FROM width
),
-- The last height that the water reaches, and what is left to spread over the width there.
surface AS (
    SELECT
        height + CASE WHEN width > 0 THEN div(room - below, width) ELSE 0 END AS level,
        CASE WHEN width > 0 THEN mod(room - below, width) ELSE 0 END AS remainder
    FROM filled
    WHERE below <= room
    ORDER BY height DESC
    LIMIT 1
),
share AS (
    SELECT
        v.name,
        v.floor,
        greatest(0, least(s.level, v.rim) - v.floor)
            + CASE
                WHEN v.floor <= s.level AND s.level < v.rim
                    AND row_number() OVER (
                        PARTITION BY v.floor <= s.level AND s.level < v.rim ORDER BY v.floor, v.name
                    ) <= s.remainder
                THEN 1
                ELSE 0
            END AS items
    FROM vessel AS v
    CROSS JOIN surface AS s
)
SELECT share.name, share.items::integer FROM share WHERE share.items > 0 ORDER BY share.floor, share.name
$$;
