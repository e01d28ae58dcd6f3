-- lane_results: a template: the finished lines of one lane with one outcome, in input order.
--
-- One scan of the primary key. Sorted here and not only in merge_lanes: of subselects that are each in
-- order the planner makes a Merge Append, of others an Append with a Sort above it.
(
    SELECT line_no, output AS line
    FROM batchline.results
    WHERE lane_id = {lane} AND outcome = {outcome}
    ORDER BY line_no
)
