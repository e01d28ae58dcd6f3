-- pause_after_failures: pause a batch that has failed too often, if its settings ask for that. Returns whether it was paused now.
--
-- Two rules, in `batches.settings`. max_failed (or max_failed_percent, of all lines that are sent; in a batch that runs in steps,
-- of those that may run so far): more lines than that have failed. pause_alike: as many lines have failed, none has completed, and all have failed with 401, with 403 or with 404; or
-- with 400 and for one cause, since lines may each have a mistake of their own. Both count from the last resume on
-- (note_failures), so that a batch that is continued does not stop again for the same failures. Reused answers do not count.
--
-- `codes` are those of the failures of this settle. The one code of all failures is kept in `failure_pauses`, because a batch
-- lists only 100 causes.
--
-- Called by the settle that has counted the failures, under the batch's row lock, so it is decided once, on counts that are
-- complete, however many workers there are. If the settle is rolled back, so is the pause.
--
-- The caller closes the lanes, when it has locked the rows of all its batches. Locks: the batch row, held by the caller.
CREATE FUNCTION batchline.pause_after_failures_v1(batch uuid, codes text[]) RETURNS boolean
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    facts record;
    broken text;
    bound integer;
    code text;
BEGIN
    SELECT
        least(
            (c.settings ->> 'max_failed')::integer,
            floor((coalesce(c.step_total, c.total) - c.reused) * (c.settings ->> 'max_failed_percent')::float8 / 100)::integer
        ) AS max_failed,
        (c.settings ->> 'pause_alike')::integer AS alike,
        c.failed - coalesce(p.failed_before, 0) AS failed,
        c.completed - greatest(c.reused, p.completed_before) AS completed,
        p.only_code
    INTO facts
    FROM batchline.current_batches AS c
    LEFT JOIN batchline.failure_pauses AS p ON p.batch_id = c.id
    WHERE c.id = batch AND c.paused_at IS NULL;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF facts.alike IS NOT NULL THEN
        code := CASE
            WHEN cardinality(codes) = 1 AND coalesce(facts.only_code, codes[1]) = codes[1] THEN codes[1]
            ELSE 'several'
        END;
        IF code IS DISTINCT FROM facts.only_code THEN
            INSERT INTO batchline.failure_pauses (batch_id, only_code)
            VALUES (batch, code)
            ON CONFLICT (batch_id) DO UPDATE SET only_code = excluded.only_code;
        END IF;
    END IF;
    IF facts.failed > facts.max_failed THEN
        broken := 'max_failed';
        bound := facts.max_failed;
    ELSIF facts.failed >= facts.alike AND facts.completed = 0 THEN
        PERFORM
        FROM batchline.current_failure_causes AS f
        WHERE f.batch_id = batch AND f.code = 'http_400' AND f.failed - f.failed_before = facts.failed;
        IF FOUND OR code IN ('http_401', 'http_403', 'http_404') THEN
            broken := 'alike';
            bound := facts.alike;
        END IF;
    END IF;
    IF broken IS NULL THEN
        RETURN false;
    END IF;
    UPDATE batchline.batches AS b SET paused_at = now(), paused_by = broken WHERE b.id = batch;
    INSERT INTO batchline.failure_pauses AS p (batch_id, threshold)
    VALUES (batch, bound)
    ON CONFLICT (batch_id) DO UPDATE SET threshold = excluded.threshold;
    INSERT INTO batchline.outbox (id, batch_id, type) VALUES (gen_random_uuid(), batch, 'batch.paused');
    PERFORM pg_notify('batchline', 'closed ' || batch);
    RETURN true;
END
$$;
