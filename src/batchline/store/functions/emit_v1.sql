-- emit: add lines to fed lanes of a batch: what finished items have emitted, or what a caller appends.
--
-- A fed lane gets its lines while the batch runs. Its cursor has passed all of them, and they wait in free spans: so claims
-- take them as any other line that can be claimed again, and know nothing of fed lanes. Its total is its cursor. The
-- cursor is appended, as that of other lanes is (docs/decisions/0014); no row changes.
--
-- One element in each array per line. `first_line_no` is the number of the first one; numbers go on within the batch. Lines
-- of one lane stay in their order. Raises invalid_parameter_value if the batch has no such fed lane: the settle is refused,
-- and its caller finds the item that is to blame.
--
-- The caller holds the lock on the batch row, and so do all that move the cursor of a fed lane: no lane is locked, because no
-- claim moves such a cursor. Notifies workers if nothing of a lane runs or could be claimed: then none of them may be looking. Lines
-- that wait for another try do not count: nobody looks before they are due.
CREATE FUNCTION batchline.emit_v1(
    batch uuid, first_line_no integer, urls text[], custom_ids text[], bodies text[]
) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_column
DECLARE
    lane record;
    idle boolean := false;
BEGIN
    FOR lane IN
        SELECT n.id, n.file_no, n.lane_no, n.next, wanted.url, wanted.lines
        FROM (SELECT u.url, count(*)::integer AS lines FROM unnest(urls) AS u (url) GROUP BY u.url) AS wanted
        LEFT JOIN batchline.current_lanes AS n ON n.batch_id = batch AND n.fed AND n.url = wanted.url
    LOOP
        IF lane.id IS NULL THEN
            RAISE invalid_parameter_value USING MESSAGE = 'batch ' || batch || ' has no stage ' || lane.url;
        END IF;
        idle := idle OR NOT EXISTS (
            SELECT
            FROM batchline.spans AS s
            WHERE s.batch_id = batch AND s.lane_id = lane.id AND (s.worker_id IS NOT NULL OR s.available_at <= now())
        );
        INSERT INTO batchline.lines (file_no, lane_no, ordinal, line_no, custom_id, body)
        SELECT
            lane.file_no,
            lane.lane_no,
            lane.next + row_number() OVER (ORDER BY e.nth) - 1,
            first_line_no + e.nth - 1,
            e.custom_id,
            e.body
        FROM unnest(urls, custom_ids, bodies) WITH ORDINALITY AS e (url, custom_id, body, nth)
        WHERE e.url = lane.url;
        INSERT INTO batchline.cursors (lane_id, next) VALUES (lane.id, lane.next + lane.lines);
        DELETE FROM batchline.cursors AS c WHERE c.lane_id = lane.id AND c.next = lane.next;
        INSERT INTO batchline.spans (lane_id, batch_id, outstanding)
        VALUES (lane.id, batch, int4multirange(int4range(lane.next, lane.next + lane.lines)));
    END LOOP;
    IF idle THEN
        PERFORM pg_notify('batchline', 'open ' || batch);
    END IF;
END
$$;
