-- release: a worker that stops frees what it holds, at once and with its attempt unchanged.
--
-- The attempt names the Idempotency-Key, so whatever was sent before is replayed, not run again.
-- `sent`: the lines may have been submitted to a provider, so that the next holder must look there first.
-- If they were not, the upstream that this claim has written to their span (sent_to) goes: any may take them.
-- Returns the batches concerned; those that are closing must be concluded after this has committed.
--
-- Locks: the worker's spans in id order.
WITH
span AS (
    SELECT id
    FROM batchline.spans
    WHERE worker_id = %(worker)s AND (%(spans)s::bigint[] IS NULL OR id = ANY (%(spans)s::bigint[]))
    ORDER BY id
    FOR UPDATE
),
freed AS (
    UPDATE batchline.spans AS s
    SET worker_id = NULL,
        -- A chunk is due by its own row, and no claim may take it (release_chunk).
        available_at = CASE WHEN starts_with(s.task_id, 'chunk:') THEN '9998-01-01 00:00:00+00'::timestamptz ELSE now() END,
        submission = CASE WHEN %(sent)s AND task_id IS NULL THEN coalesce(submission, 'interrupted') ELSE submission END,
        sent_to = CASE WHEN %(sent)s OR NOT s.newly_marked THEN s.sent_to END
    FROM span
    WHERE s.id = span.id
    RETURNING s.batch_id
)
SELECT DISTINCT batch_id FROM freed
