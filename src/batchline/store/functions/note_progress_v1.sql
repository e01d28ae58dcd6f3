-- note_progress: note how far a batch is, for charts of rates over time: at most once per minute, less often when it has run
-- for hours, and once when it ends. So a batch of a day has some 500 rows, and one of a few seconds has one.
--
-- A row has what came since the row before, so that rates of all batches can be added up without reading earlier rows. Rows
-- are only inserted: the newest of a batch is the first index entry. Settles of different batches write no common row, so
-- none of them waits for another.
--
-- The caller has appended the new counters and holds the batch's row lock, so notes of one batch come one after the other.
-- Locks: only the new row.
-- Cost of a settle that notes nothing: one index probe, and one of the batch before its first note.
CREATE FUNCTION batchline.note_progress_v1(batch uuid, ended boolean) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    last record;
    step interval;
BEGIN
    SELECT p.at, p.began_at, p.tenant, p.completed, p.failed, p.tokens, p.cost
    INTO last
    FROM batchline.progress AS p
    WHERE p.batch_id = batch
    ORDER BY p.at DESC
    LIMIT 1;
    IF NOT FOUND THEN
        -- What was reused is there from the start: it is no work.
        SELECT coalesce(b.in_progress_at, b.created_at) AS at, coalesce(b.in_progress_at, b.created_at) AS began_at,
            b.tenant, b.reused AS completed, 0 AS failed, 0::bigint AS tokens, 0::bigint AS cost
        INTO last
        FROM batchline.batches AS b
        WHERE b.id = batch;
    END IF;
    step := CASE
        WHEN now() - last.began_at < interval '4 hours' THEN interval '1 minute'
        WHEN now() - last.began_at < interval '1 day' THEN interval '5 minutes'
        ELSE interval '30 minutes'
    END;
    IF NOT ended AND now() - last.at < step THEN
        RETURN;
    END IF;
    INSERT INTO batchline.progress (
        batch_id, at, began_at, tenant, seconds, completed, failed, tokens, cost,
        more_completed, more_failed, more_tokens, more_cost, in_flight
    )
    SELECT
        batch, now(), last.began_at, last.tenant, greatest(extract(epoch FROM now() - last.at), 0)::real,
        b.completed, b.failed, b.input_tokens + b.output_tokens, b.cost,
        -- A retry has put failed lines back: then fewer have failed than before.
        greatest(b.completed - last.completed, 0), greatest(b.failed - last.failed, 0),
        greatest(b.input_tokens + b.output_tokens - last.tokens, 0), greatest(b.cost - last.cost, 0),
        greatest(u.claimed - b.left_out - b.completed - b.failed - u.retrying - u.returned, 0)
    FROM batchline.current_batches AS b
    CROSS JOIN LATERAL batchline.unfinished_v1(batch, ended) AS u
    WHERE b.id = batch
    -- Two settles of one transaction have the same time.
    ON CONFLICT (batch_id, at) DO NOTHING;
END
$$;
