-- take_chunks: give `worker` chunks that no live worker holds and that are due, up to `max_chunks`, and make sure that its lease lasts.
--
-- The worker that holds a chunk's span holds the chunk. Ordinary claims leave such spans alone (claim_returned): they are not for one item.
-- Chunks of closed lanes are taken as well: a provider works on them, whatever has become of the batch. `keys`, `excluded`,
-- `below` and `batch` narrow the scope, as in claim; `base_url` and `api`: chunks that were formed for this API there. Returns what a claim returns of the span, and the chunk.
--
-- Locks: the worker's row; then spans, skipping those that others have locked. A span that was taken since it was found is locked in its
-- newer version, which then has a live worker: so that is looked at again.
CREATE FUNCTION batchline.take_chunks_v1(
    worker uuid, worker_name text, lease interval,
    keys text[], excluded text[], below text[], batch uuid, max_chunks integer,
    base_url text DEFAULT NULL, api text DEFAULT NULL
) RETURNS TABLE (
    chunk uuid, span_id bigint, lane_id bigint, batch_id uuid, attempt integer, size integer, url text, model text,
    key text, seconds_left double precision, settings jsonb, lease_left double precision, attempts_before integer
)
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_column
DECLARE
    due bigint[];
    taken bigint[];
BEGIN
    PERFORM batchline.require_read_committed_v1();
    due := ARRAY (
        SELECT s.id
        FROM batchline.provider_chunks AS c
        CROSS JOIN LATERAL (SELECT * FROM batchline.spans WHERE spans.id = c.span_id LIMIT 1) AS s
        WHERE c.state <> 'done'
          AND s.task_id = 'chunk:' || c.id
          AND (batch IS NULL OR c.batch_id = batch)
          AND (take_chunks_v1.base_url IS NULL OR c.base_url = take_chunks_v1.base_url)
          AND (take_chunks_v1.api IS NULL OR c.api = take_chunks_v1.api)
          AND batchline.in_scope_v1(c.upstream, keys, excluded, below)
          AND (s.worker_id IS NOT NULL OR c.due_at <= now())
          AND s.worker_id IS DISTINCT FROM worker
          AND NOT EXISTS (SELECT FROM batchline.workers AS w WHERE w.id = s.worker_id AND w.lease_until >= now())
        ORDER BY c.due_at
        LIMIT max_chunks
    );
    IF cardinality(due) = 0 THEN
        RETURN;
    END IF;
    PERFORM batchline.renew_lease_v1(worker, worker_name, lease);
    taken := ARRAY (SELECT s.id FROM batchline.spans AS s WHERE s.id = ANY (due) FOR UPDATE SKIP LOCKED);
    RETURN QUERY
    WITH held AS (
        UPDATE batchline.spans AS s
        SET worker_id = worker, claimed_at = now(), submission = NULL
        WHERE s.id = ANY (taken)
          AND s.task_id IS NOT NULL
          AND NOT EXISTS (SELECT FROM batchline.workers AS w WHERE w.id = s.worker_id AND w.lease_until >= now())
        RETURNING s.*
    )
    SELECT
        substr(s.task_id, 7)::uuid, s.id, s.lane_id, s.batch_id, s.attempt, batchline.span_size(s.outstanding), n.url, n.model, n.key,
        extract(epoch FROM n.deadline - now())::double precision,
        b.settings,
        extract(epoch FROM w.lease_until - now())::double precision,
        s.attempts_before
    FROM held AS s
    CROSS JOIN LATERAL (SELECT * FROM batchline.lanes WHERE lanes.id = s.lane_id LIMIT 1) AS n
    CROSS JOIN LATERAL (SELECT * FROM batchline.batches WHERE batches.id = s.batch_id LIMIT 1) AS b
    CROSS JOIN LATERAL (SELECT * FROM batchline.workers WHERE workers.id = worker LIMIT 1) AS w;
END
$$;
