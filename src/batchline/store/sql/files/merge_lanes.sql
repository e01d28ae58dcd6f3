-- merge_lanes: a template: lines of several lanes, each in input order, as one.
(
    SELECT line_no, line
    FROM (
        {lanes}
    ) AS lane
    ORDER BY line_no
)
