-- conclude_now: freeze a batch that is being cancelled or has expired, if no live worker holds any of its lines.
--
-- Its spans are deleted, so that a late verdict finds nothing to change, its cursors go back to the lanes, and finalizing
-- begins. Tasks of providers are noted, to be cancelled there, with all that it takes: the batch may be deleted before; and
-- they end an attempt of their lines, unless they are chunks of which no line was submitted. Lines that a provider may have accepted are noted, too: a retry must look there before
-- it submits them again. The children of a governed batch that never ran have ended with it, and the audit log
-- says so. Returns whether the batch was frozen now.
--
-- Locks: the batch row, waiting; then its spans, never waiting; then its lanes in id order. A transaction that has a span locked is about
-- to settle it and to conclude afterwards, but waits for the batch row first: to wait for it would be a deadlock. Each
-- statement sees what was committed before it began: so of two workers that settle the last two spans, the second to get
-- the batch row freezes it.
CREATE FUNCTION batchline.conclude_now_v2(batch uuid) RETURNS boolean
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_column
DECLARE
    governed boolean;
    locked bigint[];
    -- Spans of chunks that the provider does not work on.
    unsent bigint[] := '{}';
BEGIN
    PERFORM batchline.require_read_committed_v1();
    SELECT b.submitted_by IS NOT NULL INTO governed
    FROM batchline.batches AS b
    WHERE b.id = batch AND (b.cancelling_at IS NOT NULL OR b.expiring_at IS NOT NULL) AND b.finalizing_at IS NULL
    FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    locked := ARRAY (SELECT s.id FROM batchline.spans AS s WHERE s.batch_id = batch FOR UPDATE SKIP LOCKED);
    PERFORM
    FROM batchline.spans AS s
    WHERE s.batch_id = batch
      AND (
          s.id NOT IN (SELECT unnest(locked))
          OR EXISTS (SELECT FROM batchline.workers AS w WHERE w.id = s.worker_id AND w.lease_until >= now())
      )
    LIMIT 1;
    IF FOUND THEN
        RETURN false;
    END IF;
    INSERT INTO batchline.abandoned_tasks (upstream, task_id, batch_id, lane_id, url, model, settings)
    SELECT s.upstream, s.task_id, s.batch_id, s.lane_id, n.url, n.model, b.settings
    FROM batchline.spans AS s
    JOIN batchline.lanes AS n ON n.id = s.lane_id
    JOIN batchline.batches AS b ON b.id = s.batch_id
    WHERE s.id = ANY (locked) AND s.task_id IS NOT NULL
    ON CONFLICT DO NOTHING;
    PERFORM FROM batchline.spans AS s WHERE s.id = ANY (locked) AND starts_with(s.task_id, 'chunk:') LIMIT 1;
    IF FOUND THEN
        unsent := ARRAY (
            SELECT c.span_id
            FROM batchline.provider_chunks AS c
            WHERE c.batch_id = batch AND c.state IN ('prepared', 'uploaded')
        );
    END IF;
    -- If these lines run again, they need another attempt: under the same Idempotency-Key, the provider would answer with the
    -- cancelled task.
    INSERT INTO batchline.retry_attempts (batch_id, lane_id, ordinal, attempt, error_code, message, not_before)
    SELECT s.batch_id, s.lane_id, o.ordinal, s.attempt, 'task_abandoned', 'The batch ended before the task.', now()
    FROM batchline.spans AS s
    CROSS JOIN LATERAL unnest(s.outstanding) AS piece
    CROSS JOIN LATERAL generate_series(lower(piece), upper(piece) - 1) AS o (ordinal)
    WHERE s.id = ANY (locked) AND s.task_id IS NOT NULL AND s.id <> ALL (unsent);
    -- As claim_returned does with the lines of a worker whose lease has expired.
    INSERT INTO batchline.lost_submissions AS l (batch_id, lane_id, submission, ordinals)
    SELECT s.batch_id, s.lane_id, coalesce(s.submission, 'interrupted'), range_agg(s.outstanding)
    FROM batchline.spans AS s
    WHERE s.id = ANY (locked) AND s.task_id IS NULL AND (s.submission IS NOT NULL OR s.worker_id IS NOT NULL)
    GROUP BY 1, 2, 3
    ON CONFLICT (batch_id, lane_id, submission) DO UPDATE SET ordinals = l.ordinals + excluded.ordinals;
    DELETE FROM batchline.spans AS s WHERE s.id = ANY (locked);
    -- The lanes are closed, so no claim moves a cursor any more. One that has waited for them may still hold them.
    PERFORM FROM batchline.lanes AS n WHERE n.batch_id = batch ORDER BY n.id FOR NO KEY UPDATE;
    UPDATE batchline.lanes AS n
    SET next = c.next, total = c.total
    FROM batchline.current_lanes AS c
    WHERE n.batch_id = batch AND c.id = n.id AND (c.next <> n.next OR c.total <> n.total);
    DELETE FROM batchline.cursors AS c USING batchline.lanes AS n WHERE n.batch_id = batch AND c.lane_id = n.id;
    PERFORM batchline.freeze_v1(batch);
    IF governed THEN
        INSERT INTO batchline.audit_log (tenant, actor, action, batch_id, sequence_no, detail)
        SELECT
            b.tenant,
            'system',
            'child.ended',
            b.id,
            l.line_no,
            jsonb_build_object(
                'status', 'CANCELLED',
                'code', CASE WHEN b.cancelling_at IS NULL THEN 'batch_expired' ELSE 'batch_cancelled' END
            )
        FROM batchline.batches AS b
        JOIN batchline.lanes AS n ON n.batch_id = b.id
        JOIN batchline.lines AS l ON l.file_no = n.file_no AND l.lane_no = n.lane_no
        WHERE b.id = batch
          AND NOT EXISTS (SELECT FROM batchline.results AS r WHERE r.lane_id = n.id AND r.line_no = l.line_no)
        ORDER BY l.line_no;
    END IF;
    RETURN true;
END
$$;
