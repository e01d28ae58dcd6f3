-- unfinished: how many items of a batch were claimed at least once, and of these how many wait for another try, and how many
-- can be claimed again now. See unfinished_v1, which this is for most batches.
--
-- In a batch whose lines were arranged (arrange_lines), all lines that nobody has had are in free spans, in as many pieces as
-- there are lines: to count those takes a second for a million. So what is counted instead is what is in progress: spans of
-- workers, and tasks of providers. What can be claimed is the rest of what the cursors have passed.
--
-- Call it in the statement that reads the batch's counters, as the other. No locks. Cost: for such a batch, one read of
-- its spans by spans_batch, without the ordinals of free ones.
CREATE FUNCTION batchline.unfinished_v2(batch uuid, frozen boolean)
RETURNS TABLE (claimed integer, retrying integer, returned integer)
LANGUAGE plpgsql STABLE ROWS 1
AS $$
#variable_conflict use_column
DECLARE
    held_back CONSTANT timestamptz := '9999-12-31 00:00:00+00';
    ended integer;
BEGIN
IF NOT frozen THEN
    SELECT c.completed + c.failed + c.left_out INTO ended
    FROM batchline.current_batches AS c
    WHERE c.id = batch AND c.settings ?| ARRAY['dedupe', 'order'];
END IF;
IF ended IS NULL THEN
    RETURN QUERY SELECT u.claimed, u.retrying, u.returned FROM batchline.unfinished_v1(batch, frozen) AS u;
    RETURN;
END IF;
RETURN QUERY
SELECT
    lane.claimed,
    span.retrying,
    lane.claimed - ended - span.retrying - span.in_progress
FROM (
    SELECT coalesce(sum(n.next), 0)::integer AS claimed FROM batchline.current_lanes AS n WHERE n.batch_id = batch
) AS lane
CROSS JOIN (
    SELECT
        coalesce(sum(batchline.span_size(s.outstanding)) FILTER (
            WHERE s.worker_id IS NULL AND s.task_id IS NULL
        ), 0)::integer AS retrying,
        coalesce(sum(batchline.span_size(s.outstanding)) FILTER (
            WHERE s.worker_id IS NOT NULL OR s.task_id IS NOT NULL
        ), 0)::integer AS in_progress
    FROM batchline.spans AS s
    WHERE s.batch_id = batch
      AND (
          s.worker_id IS NOT NULL
          OR s.task_id IS NOT NULL
          OR (s.available_at > now() AND s.available_at < held_back)
      )
) AS span;
END
$$;
