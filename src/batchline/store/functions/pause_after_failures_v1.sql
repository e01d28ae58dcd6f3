-- pause_after_failures: pause a batch that has failed too often, if its settings ask for that. Returns whether it was paused now.
--
-- Two rules, in `batches.settings`. max_failed (or max_failed_percent, of all lines): more lines than that have failed.
-- pause_alike: as many lines have failed, none has completed, and all have failed with 401, with 403 or with 404; or with 400
-- and for one cause, since lines may each have a mistake of their own. Both count from the last resume on (note_failures), so that a batch that is continued does
-- not stop again for the same failures.
--
-- Called by the settle that has counted the failures, under the batch's row lock, so it is decided once, on counts that are
-- complete, however many workers there are. If the settle is rolled back, so is the pause.
--
-- Locks: the batch row, held by the caller; then the lanes in id order, as close does.
CREATE FUNCTION batchline.pause_after_failures_v1(batch uuid) RETURNS boolean
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    facts record;
    broken text;
    bound integer;
BEGIN
    SELECT
        least(
            (c.settings ->> 'max_failed')::integer,
            floor(c.total * (c.settings ->> 'max_failed_percent')::float8 / 100)::integer
        ) AS max_failed,
        (c.settings ->> 'pause_alike')::integer AS alike,
        c.failed - coalesce(p.failed_before, 0) AS failed,
        c.completed - coalesce(p.completed_before, 0) AS completed
    INTO facts
    FROM batchline.current_batches AS c
    LEFT JOIN batchline.failure_pauses AS p ON p.batch_id = c.id
    WHERE c.id = batch AND c.paused_at IS NULL;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    IF facts.failed > facts.max_failed THEN
        broken := 'max_failed';
        bound := facts.max_failed;
    ELSIF facts.failed >= facts.alike AND facts.completed = 0 THEN
        PERFORM
        FROM batchline.current_failure_causes AS f
        WHERE f.batch_id = batch AND f.code IN ('http_400', 'http_401', 'http_403', 'http_404')
        GROUP BY CASE f.code WHEN 'http_400' THEN f.key ELSE f.code END
        HAVING sum(f.failed - f.failed_before) = facts.failed;
        IF FOUND THEN
            broken := 'alike';
            bound := facts.alike;
        END IF;
    END IF;
    IF broken IS NULL THEN
        RETURN false;
    END IF;
    UPDATE batchline.batches AS b SET paused_at = now(), paused_by = broken WHERE b.id = batch;
    PERFORM FROM batchline.lanes AS n WHERE n.batch_id = batch ORDER BY n.id FOR NO KEY UPDATE;
    UPDATE batchline.lanes AS n SET open = false WHERE n.batch_id = batch;
    INSERT INTO batchline.failure_pauses AS p (batch_id, threshold)
    VALUES (batch, bound)
    ON CONFLICT (batch_id) DO UPDATE SET threshold = excluded.threshold;
    PERFORM pg_notify('batchline', 'closed ' || batch);
    RETURN true;
END
$$;
