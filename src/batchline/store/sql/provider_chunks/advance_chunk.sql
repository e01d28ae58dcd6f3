-- advance_chunk: record that a chunk has gone from one state to another, and what is known of it now. Values that are null stay.
-- `refused`: the provider has refused its batch as a whole. The times of a creation and of the first search for it are the database's.
-- Nothing happens unless the chunk is in the state `before` and `worker` holds its span: so a worker that has lost it changes nothing.
--
-- Locks: the chunk's span, so that nobody takes it meanwhile, then the chunk's row.
WITH
span AS (
    SELECT s.id
    FROM batchline.spans AS s
    WHERE s.id = %(span)s AND s.worker_id = %(worker)s AND s.task_id = 'chunk:' || %(chunk)s::uuid
    FOR SHARE
)
UPDATE batchline.provider_chunks AS c
SET state = %(state)s::text,
    file_id = coalesce(%(file)s::text, c.file_id),
    provider_batch = coalesce(%(provider_batch)s::text, c.provider_batch),
    outcome = coalesce(%(outcome)s::text, c.outcome),
    refused = CASE WHEN %(refused)s::boolean THEN c.refused || c.provider_batch ELSE c.refused END,
    searches = coalesce(%(searches)s::smallint, c.searches),
    resubmissions = coalesce(%(resubmissions)s::smallint, c.resubmissions),
    creating_at = CASE WHEN %(state)s::text = 'creating' AND c.state <> 'creating' THEN now() ELSE c.creating_at END,
    searched_at = CASE WHEN %(state)s::text = 'creating' AND c.state = 'creating' THEN coalesce(c.searched_at, now()) END,
    cancelling = coalesce(%(cancelling)s::boolean, c.cancelling),
    error = coalesce(%(error)s::text, c.error),
    submitted_at = CASE WHEN %(state)s::text = 'submitted' THEN coalesce(c.submitted_at, now()) ELSE c.submitted_at END,
    ended_at = CASE WHEN %(state)s::text = 'ended' THEN coalesce(c.ended_at, now()) ELSE c.ended_at END,
    updated_at = now()
FROM span
WHERE c.id = %(chunk)s::uuid AND c.span_id = span.id AND c.state = %(before)s::text
RETURNING c.id
