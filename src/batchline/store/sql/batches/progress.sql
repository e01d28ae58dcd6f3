-- progress: what a live display shows beyond the batch's row: items handed out, and items that wait for
-- another try. Spans are few, so this is cheap.
SELECT
    coalesce(sum(span_size(outstanding)) FILTER (WHERE worker_id IS NOT NULL), 0)::integer AS in_flight,
    coalesce(sum(span_size(outstanding)) FILTER (WHERE worker_id IS NULL AND attempt > 1), 0)::integer AS retrying
FROM spans
WHERE batch_id = %(batch)s
