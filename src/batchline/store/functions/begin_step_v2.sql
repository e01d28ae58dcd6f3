-- begin_step: do what is next in a batch whose lines that may run have ended: answer duplicates, if it has any
-- (answer_duplicates), or let the next step run (begin_step_v1). Returns the number of lines; 0: nothing to do. Call it until
-- then: duplicates are answered in parts.
--
-- A batch with duplicates has no steps. Locks: those of the two functions.
CREATE FUNCTION batchline.begin_step_v2(batch uuid) RETURNS integer
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    -- Nothing is locked for a batch without a step that is due.
    PERFORM FROM batchline.batches AS b WHERE b.id = batch AND b.next_step_at <= now();
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    IF EXISTS (SELECT FROM batchline.duplicates AS d WHERE d.batch_id = batch) THEN
        RETURN (SELECT a.answered FROM batchline.answer_duplicates_v1(batch, false, 0) AS a);
    END IF;
    RETURN batchline.begin_step_v1(batch);
END
$$;
