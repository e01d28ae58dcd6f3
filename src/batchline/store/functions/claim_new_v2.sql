-- claim_new: give the first lines of a batch that was just announced to an idle worker, with their bodies.
--
-- claim would find them too. But it looks at everything, and the lines must be fetched after it; this saves an idle worker
-- most of the time between the notification of a batch and its first request. It takes from one lane, and no more than
-- `max_items`, or than the concurrency of the batch; the next claim finds the rest.
--
-- Locks: the worker's row if its lease needs renewal; then one lane, skipped if it is locked: then another worker is at this
-- batch already. Bodies of more than 32 KiB in total are left out (NULL) and read by fetch.sql: a client that freezes while
-- it reads a megabyte must not hold a lock.
CREATE FUNCTION batchline.claim_new_v2(
    worker uuid, worker_name text, lease interval,
    keys text[], excluded text[], below text[], batch uuid, max_items integer, sender text
) RETURNS TABLE (
    span_id bigint, lane_id bigint, batch_id uuid, attempt integer, task_id text, size integer, url text, model text,
    key text, seconds_left double precision, settings jsonb, lease_left double precision,
    concurrency integer, tenant text, ordinal integer, line_no integer, custom_id text, body text
)
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_column
DECLARE
    lane bigint;
    max_sent integer;
    span bigint;
BEGIN
    PERFORM batchline.require_read_committed_v1();
    SELECT n.id, n.concurrency INTO lane, max_sent
    FROM batchline.lanes AS n
    WHERE n.batch_id = batch
      AND n.open
      AND NOT n.drained
      AND n.deadline > now()
      AND batchline.in_scope_v1(n.key, keys, excluded, below)
    ORDER BY n.id
    LIMIT 1;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    PERFORM batchline.renew_lease_v1(worker, worker_name, lease);
    PERFORM FROM batchline.lanes AS n WHERE n.id = lane FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    SELECT c.span_id INTO span FROM batchline.claim_fresh_v2(worker, lane, least(max_items, max_sent), sender) AS c;
    RETURN QUERY
    SELECT
        s.id, n.id, n.batch_id, s.attempt, s.task_id, batchline.span_size(s.outstanding), n.url, n.model, n.key,
        extract(epoch FROM n.deadline - now())::double precision,
        b.settings,
        extract(epoch FROM w.lease_until - now())::double precision,
        n.concurrency, n.tenant, l.ordinal, l.line_no, l.custom_id,
        CASE WHEN sum(octet_length(l.body)) OVER () <= 32768 THEN l.body END
    FROM batchline.spans AS s
    JOIN batchline.lanes AS n ON n.id = s.lane_id
    JOIN batchline.batches AS b ON b.id = n.batch_id
    JOIN batchline.workers AS w ON w.id = s.worker_id
    -- A span is returned even if its lines are not there.
    LEFT JOIN LATERAL (
        SELECT lines.ordinal, lines.line_no, lines.custom_id, lines.body
        FROM batchline.lines
        WHERE lines.file_no = n.file_no
          AND lines.lane_no = n.lane_no
          AND lines.ordinal >= lower(s.outstanding)
          AND lines.ordinal < upper(s.outstanding)
        ORDER BY lines.ordinal
    ) AS l ON true
    WHERE s.id = span;
END
$$;
