-- progress: what a live display shows beyond the batch's row: items in flight, and items that wait for
-- another try. Spans are few, so this is cheap.
SELECT
    coalesce(sum(batchline.span_size(outstanding)) FILTER (WHERE worker_id IS NOT NULL), 0)::integer AS in_flight,
    coalesce(sum(batchline.span_size(outstanding)) FILTER (WHERE worker_id IS NULL AND attempt > 1), 0)::integer AS retrying
FROM batchline.spans
WHERE batch_id = %(batch)s
