-- end_step: all lines of a batch that may run have ended: say when the next step begins. Returns whether the caller must close
-- the lanes, because the batch is paused or held now.
--
-- A sample ends with a decision. An ordinary batch is paused, and a resume runs the rest. A governed batch is held until its
-- results are approved: a resume, which the submitter may call, does not open it.
--
-- Called by the settle that has ended the step, under the batch's row lock, after pause_after_failures: so a step ends once,
-- and no crash can come between its end and what is written here. Locks: the batch row, held by the caller; of a governed
-- batch then its row in operation_batches.
CREATE FUNCTION batchline.end_step_v1(batch uuid) RETURNS boolean
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    facts record;
BEGIN
    UPDATE batchline.batches AS b
    SET next_step_at = now() + make_interval(secs => coalesce((b.settings -> 'steps' ->> 'pause')::float8, 0))
    WHERE b.id = batch
    RETURNING b.step = 0 AS sampled, b.submitted_by IS NOT NULL AS governed, b.tenant, b.paused_by INTO facts;
    IF NOT facts.sampled THEN
        RETURN false;
    END IF;
    IF facts.governed THEN
        UPDATE batchline.batches AS b SET held_at = now() WHERE b.id = batch;
        UPDATE batchline.operation_batches AS o
        SET approval = 'pending', decided_by = NULL, decided_at = NULL, decision_reason = NULL, decided_digest = NULL
        WHERE o.batch_id = batch;
        INSERT INTO batchline.audit_log (tenant, actor, action, batch_id, detail)
        SELECT c.tenant, 'system', 'batch.sample_ended', c.id,
            jsonb_build_object('succeeded', c.completed, 'failed', c.failed, 'pending', c.total - c.completed - c.failed)
        FROM batchline.current_batches AS c
        WHERE c.id = batch;
        INSERT INTO batchline.outbox (id, batch_id, type) VALUES (gen_random_uuid(), batch, 'batch.approval_requested');
    ELSIF facts.paused_by IS NULL THEN
        UPDATE batchline.batches AS b
        SET paused_at = coalesce(b.paused_at, now()), paused_by = 'sample'
        WHERE b.id = batch;
        INSERT INTO batchline.outbox (id, batch_id, type) VALUES (gen_random_uuid(), batch, 'batch.paused');
    END IF;
    PERFORM pg_notify('batchline', 'closed ' || batch);
    RETURN true;
END
$$;
