-- add_counts: add what a settle has recorded to the counters of its batch; freeze the batch if nothing is left unfinished.
--
-- The batch row is locked and does not change. Its counters are appended to `counters`, and the ones before deleted: the
-- newest is the first index entry, however many dead ones a snapshot elsewhere keeps behind it (docs/decisions/0014). They
-- are read in a statement that began after the row was locked: so they are what the last settle has committed.
--
-- Returns `finished` if the batch is frozen now, `left_out` if the caller must close its lanes then (freeze), `closing` if it is being cancelled or has expired, and `governed` if it was
-- submitted as a governed operation, `step_ended` if all lines that may run have ended now (end_step), and `total`, the number of
-- lines before this call; all of them NULL if the batch was deleted.
--
-- `more_lines` are added to the batch by its caller (emit). A batch that accepts items is not finished, nor is one with a stage
-- that collects the results of others (collect).
-- Locks: the batch row.
CREATE FUNCTION batchline.add_counts_v1(
    batch uuid, more_completed integer, more_failed integer, more_input_tokens bigint, more_cached_tokens bigint,
    more_output_tokens bigint, more_reasoning_tokens bigint, more_cost bigint, more_lines integer, more_bytes bigint,
    OUT finished boolean, OUT closing boolean, OUT governed boolean, OUT left_out boolean, OUT step_ended boolean,
    OUT total integer
)
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    before record;
BEGIN
    PERFORM FROM batchline.batches AS b WHERE b.id = batch FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    SELECT
        b.total + coalesce(c.added, 0) AS total,
        b.left_out,
        b.accepting,
        b.cancelling_at IS NOT NULL OR b.expiring_at IS NOT NULL AS closing,
        b.submitted_by IS NOT NULL AS governed,
        b.step_total,
        c.seq,
        coalesce(c.completed, b.completed) AS completed,
        coalesce(c.failed, b.failed) AS failed,
        coalesce(c.input_tokens, b.input_tokens) AS input_tokens,
        coalesce(c.cached_tokens, b.cached_tokens) AS cached_tokens,
        coalesce(c.output_tokens, b.output_tokens) AS output_tokens,
        coalesce(c.reasoning_tokens, b.reasoning_tokens) AS reasoning_tokens,
        coalesce(c.cost, b.cost) AS cost,
        coalesce(c.added, 0) AS added,
        coalesce(c.added_bytes, 0) AS added_bytes
    INTO before
    FROM batchline.batches AS b
    LEFT JOIN LATERAL (
        SELECT * FROM batchline.counters WHERE counters.batch_id = b.id ORDER BY counters.seq DESC LIMIT 1
    ) AS c ON true
    WHERE b.id = batch;

    closing := before.closing;
    governed := before.governed;
    total := before.total;
    finished := NOT before.accepting
        AND before.completed + before.failed + more_completed + more_failed = before.total + more_lines - before.left_out;
    step_ended := coalesce(before.completed + before.failed + more_completed + more_failed = before.step_total, false);
    -- An attempt that is tried again may have used tokens, too.
    IF more_completed + more_failed + more_lines > 0 OR more_input_tokens + more_output_tokens > 0 THEN
        INSERT INTO batchline.counters (
            batch_id, completed, failed, input_tokens, cached_tokens, output_tokens, reasoning_tokens, cost, added, added_bytes
        )
        VALUES (
            batch,
            before.completed + more_completed,
            before.failed + more_failed,
            before.input_tokens + more_input_tokens,
            before.cached_tokens + more_cached_tokens,
            before.output_tokens + more_output_tokens,
            before.reasoning_tokens + more_reasoning_tokens,
            before.cost + more_cost,
            before.added + more_lines,
            before.added_bytes + more_bytes
        );
        DELETE FROM batchline.counters AS c WHERE c.batch_id = batch AND c.seq = before.seq;
        PERFORM batchline.note_progress_v1(batch, finished);
    END IF;
    IF finished AND batchline.collect_v1(batch) THEN
        finished := false;
    ELSIF finished THEN
        left_out := batchline.freeze_v1(batch);
    END IF;
END
$$;
