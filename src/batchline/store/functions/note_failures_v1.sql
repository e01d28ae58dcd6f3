-- note_failures: what has failed so far is known: from now on, pause_after_failures counts anew. Called when a batch continues: by
-- a resume, and after failed lines were put back.
--
-- Locks: the batch row, waiting. The counts are read by later statements, which see what the last settle has committed.
CREATE FUNCTION batchline.note_failures_v1(batch uuid) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    PERFORM FROM batchline.batches AS b WHERE b.id = batch FOR NO KEY UPDATE;
    INSERT INTO batchline.failure_pauses AS p (batch_id, failed_before, completed_before)
    SELECT c.id, c.failed, c.completed FROM batchline.current_batches AS c WHERE c.id = batch
    ON CONFLICT (batch_id) DO UPDATE SET
        threshold = NULL,
        failed_before = excluded.failed_before,
        completed_before = excluded.completed_before,
        only_code = NULL;
    UPDATE batchline.failure_causes AS f
    SET failed_before = c.failed
    FROM batchline.current_failure_causes AS c
    WHERE f.batch_id = batch AND c.batch_id = batch AND c.key = f.key AND c.failed <> f.failed_before;
END
$$;
