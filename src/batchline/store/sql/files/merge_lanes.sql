-- merge_lanes: template that merges the lines of several lanes, each in input order.
(
    SELECT line_no, line
    FROM (
        {lanes}
    ) AS lane
    ORDER BY line_no
)
