-- reuse_sources: the lanes of earlier batches whose answers a new batch over a file may reuse, newest batch first.
--
-- Same tenant, same upstream, same model and url (`target_lane_no` is the lane of the new file that has them), of batches whose
-- answers are there to be used (`reusable_batches`) and were checked by the same rules. `complete`: every line has a completed answer; otherwise each answer must
-- be looked up. No locks.
--
-- Bounded: a run over the same lines as a newer complete one adds nothing and is left out, and the newest 10,000,000 lines are
-- enough, or 20 times as many as the new file has. Cost: one read of the tenant's batches, by batches_newest.
CREATE FUNCTION batchline.reuse_sources_v1(new_tenant text, new_file_no bigint, new_settings jsonb, excluded uuid)
RETURNS TABLE (
    lane_id bigint, batch_id uuid, file_no bigint, lane_no integer, target_lane_no integer, complete boolean, total integer,
    nth bigint
)
LANGUAGE sql STABLE
AS $$
WITH
earlier AS (
    SELECT
        n.id,
        n.batch_id,
        n.file_no,
        n.lane_no,
        part.lane_no AS target_lane_no,
        b.complete,
        n.total,
        row_number() OVER (ORDER BY b.created_at DESC, b.id DESC, n.id) AS nth
    FROM batchline.reusable_batches AS b
    CROSS JOIN LATERAL (SELECT * FROM batchline.lanes WHERE lanes.batch_id = b.id OFFSET 0) AS n
    JOIN batchline.file_lanes AS part ON part.file_no = new_file_no AND part.model = n.model AND part.url = n.url
    WHERE b.tenant = new_tenant
      AND b.id IS DISTINCT FROM excluded
      AND b.settings -> 'answers' IS NOT DISTINCT FROM new_settings -> 'answers'
      AND batchline.answered_by_v1(b.settings, n.model) = batchline.answered_by_v1(new_settings, part.model)
),
compared AS (
    SELECT e.*, min(e.nth) FILTER (WHERE e.complete) OVER (PARTITION BY e.file_no, e.lane_no) AS newest_complete
    FROM earlier AS e
),
needed AS (
    SELECT c.*, sum(c.total) OVER (ORDER BY c.nth) - c.total AS before
    FROM compared AS c
    WHERE c.newest_complete IS NULL OR c.nth <= c.newest_complete
)
SELECT n.id, n.batch_id, n.file_no, n.lane_no, n.target_lane_no, n.complete, n.total, n.nth
FROM needed AS n
WHERE n.before < greatest(10000000, (SELECT 20 * f.line_count::bigint FROM batchline.files AS f WHERE f.no = new_file_no))
$$;
