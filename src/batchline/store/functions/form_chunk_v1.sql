-- form_chunk: make one chunk of lines that `worker` has claimed and sent nowhere, and record it before anything of it is sent.
--
-- `spans` are of one lane, batch and attempt. The chunk has as many of their first lines as the provider's limits allow: `max_lines`, and
-- `max_bytes` with `overhead` bytes more per line, but at least one line. It gets one span, whose task is the chunk; lines beyond it go
-- into a span that is free again. No more than `max_chunks` of one upstream are open at once, nor chunks with more than `max_tokens`, of
-- which a byte is `tokens_per_byte`; the only open chunk may have any number of tokens, otherwise it would wait for ever.
--
-- `base_url` and `api` say where it goes: a relay takes it over only if it reaches the same. The limits are noted for people.
--
-- Returns the chunk's span, lines and bytes; no row if there is no room, or the worker has lost its spans. Then it still has them.
--
-- Locks: an advisory one for the upstream until the end of the transaction, so that two workers cannot both take the last room; then
-- spans in id order. Whoever waits for the advisory lock holds no other.
CREATE FUNCTION batchline.form_chunk_v1(
    worker uuid, spans bigint[], chunk uuid, key text,
    max_lines integer, max_bytes bigint, overhead integer, max_chunks integer, max_tokens bigint, tokens_per_byte double precision,
    base_url text DEFAULT '', api text DEFAULT 'openai'
) RETURNS TABLE (span_id bigint, lines integer, bytes bigint)
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_column
DECLARE
    open_chunks integer;
    open_tokens bigint;
    room bigint := max_bytes;
    claimed record;
    taken int4multirange;
BEGIN
    PERFORM batchline.require_read_committed_v1();
    PERFORM pg_advisory_xact_lock(hashtextextended('batchline chunks ' || key, 0));
    SELECT count(*), coalesce(sum(c.tokens), 0) INTO open_chunks, open_tokens
    FROM batchline.provider_chunks AS c
    -- One probe per open chunk: as a join of two tables, it may read all spans up to the newest.
    CROSS JOIN LATERAL (SELECT * FROM batchline.spans WHERE spans.id = c.span_id LIMIT 1) AS s
    WHERE c.upstream = key
      AND c.state <> 'done'
      -- One whose batch has ended has no span. It is cancelled at the provider as soon as possible.
      AND s.task_id = 'chunk:' || c.id;
    IF open_chunks >= max_chunks OR (open_tokens > 0 AND open_tokens >= max_tokens) THEN
        RETURN;
    END IF;
    IF max_tokens IS NOT NULL THEN
        room := least(room, ((max_tokens - open_tokens) / tokens_per_byte)::bigint);
    END IF;
    PERFORM FROM batchline.spans AS s WHERE s.id = ANY (spans) ORDER BY s.id FOR UPDATE;
    SELECT
        min(s.id) AS span_id, s.lane_id, s.batch_id, s.attempt, s.attempts_before, range_agg(s.outstanding) AS outstanding,
        array_agg(s.id) AS ids
    INTO claimed
    FROM batchline.spans AS s
    WHERE s.id = ANY (spans) AND s.worker_id = worker AND s.task_id IS NULL
    GROUP BY s.lane_id, s.batch_id, s.attempt, s.attempts_before
    LIMIT 1;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    -- Sizes are read without the bodies.
    SELECT coalesce(max(sized.nth), 0), coalesce(max(sized.total), 0) INTO lines, bytes
    FROM (
        SELECT
            row_number() OVER (ORDER BY l.ordinal) AS nth,
            sum(l.size + overhead) OVER (ORDER BY l.ordinal) AS total
        FROM unnest(batchline.span_head(claimed.outstanding, max_lines)) AS piece
        CROSS JOIN LATERAL (SELECT * FROM batchline.lanes AS n WHERE n.id = claimed.lane_id LIMIT 1) AS n
        CROSS JOIN LATERAL (
            SELECT line.ordinal, octet_length(line.body) AS size
            FROM batchline.lines AS line
            WHERE line.file_no = n.file_no
              AND line.lane_no = n.lane_no
              AND line.ordinal >= lower(piece)
              AND line.ordinal < upper(piece)
            -- A barrier: otherwise the sort takes the bodies along.
            OFFSET 0
        ) AS l
    ) AS sized
    WHERE sized.total <= room OR sized.nth = 1;
    IF lines = 0 OR (open_chunks > 0 AND max_tokens IS NOT NULL AND bytes > room) THEN
        RETURN;
    END IF;
    taken := batchline.span_head(claimed.outstanding, lines);
    span_id := claimed.span_id;
    DELETE FROM batchline.spans AS s WHERE s.id = ANY (claimed.ids) AND s.id <> claimed.span_id;
    UPDATE batchline.spans AS s
    SET outstanding = taken, upstream = key, task_id = 'chunk:' || chunk, submission = NULL, sent_to = NULL
    WHERE s.id = claimed.span_id;
    IF taken <> claimed.outstanding THEN
        INSERT INTO batchline.spans (lane_id, batch_id, outstanding, attempt, attempts_before)
        VALUES (claimed.lane_id, claimed.batch_id, claimed.outstanding - taken, claimed.attempt, claimed.attempts_before);
    END IF;
    INSERT INTO batchline.provider_chunks
        (id, batch_id, lane_id, span_id, upstream, base_url, api, attempt, ordinals, lines, bytes, tokens, chunk_limit, token_limit)
    VALUES (
        chunk, claimed.batch_id, claimed.lane_id, span_id, key, form_chunk_v1.base_url, form_chunk_v1.api, claimed.attempt, taken, lines, bytes,
        (bytes * tokens_per_byte)::bigint, max_chunks, max_tokens
    );
    RETURN NEXT;
END
$$;
