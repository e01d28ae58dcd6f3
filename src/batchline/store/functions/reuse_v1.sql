-- reuse: give the lines of a new batch the answers that the same lines have in earlier batches. Returns their number.
--
-- Runs in the transaction that creates the batch, so nobody else sees the batch before this is done, and a crash leaves
-- nothing. The hashes of its file and of the earlier files were stored before (hash_lines). Earlier batches are read newest
-- first, about as many lines at a time as the new batch has, until each line has an answer.
--
-- An answer is copied, because the earlier batch may be deleted at any time. Its line gets the new custom_id, and keeps its `id`,
-- that of the request that was sent. Attempt 0 marks it as reused. Its tokens are not counted: they were not spent again.
--
-- Afterwards the invariant holds as after any claim: the cursor of each lane is behind its last reused line, and the lines
-- before that without an answer are in free spans. There are at most about a thousand spans per lane, and each has few
-- enough pieces to be split quickly. If no line is left, the batch is frozen, and a notification makes workers look for it.
--
-- Locks: none but on rows that this transaction has created. Earlier batches are only read. Each statement that copies looks
-- again which of them may be used (still_reusable): what is deleted before it begins is not used.
--
-- Nested loops are switched off for these statements: they join as many lines as there are, and a plan knows no numbers.
-- Whatever must be read by key there is in a subquery that cannot be joined in another way.
CREATE FUNCTION batchline.reuse_v1(batch uuid) RETURNS integer
LANGUAGE plpgsql VOLATILE
SET work_mem = '128MB'
SET enable_nestloop = on
AS $$
#variable_conflict use_column
DECLARE
    min_lines_at_once CONSTANT integer := 100000;
    created record;
    source record;
    hashed integer;
    copies integer;
    answers integer := 0;
BEGIN
    PERFORM batchline.require_read_committed_v1();
    SELECT b.tenant, b.settings, b.total, f.no AS file_no INTO created
    FROM batchline.batches AS b
    JOIN batchline.files AS f ON f.id = b.file_id
    WHERE b.id = batch AND NOT b.settings ? 'provider';
    CREATE TEMP TABLE reuse_left ON COMMIT DROP AS
    SELECT n.id AS lane_id, line.hash, line.proof, line.ordinal
    FROM batchline.lanes AS n
    JOIN batchline.line_hashes AS h ON h.file_no = n.file_no AND h.lane_no = n.lane_no
    CROSS JOIN LATERAL unnest(h.hashes, h.proofs, h.ordinals) AS line (hash, proof, ordinal)
    WHERE n.batch_id = batch;
    GET DIAGNOSTICS hashed = ROW_COUNT;
    IF hashed IS DISTINCT FROM created.total THEN
        -- It was not hashed, because there was nothing to reuse.
        DROP TABLE reuse_left;
        RETURN 0;
    END IF;
    CREATE TEMP TABLE reuse_sources ON COMMIT DROP AS
    SELECT
        s.*,
        n.id AS target,
        (sum(s.total) OVER (ORDER BY s.nth) - s.total) / greatest(min_lines_at_once, created.total) AS part
    FROM batchline.reuse_sources_v1(created.tenant, created.file_no, created.settings, batch) AS s
    JOIN batchline.lanes AS n ON n.batch_id = batch AND n.lane_no = s.target_lane_no;

    -- Until the end of this function, which sets it, too.
    PERFORM set_config('enable_nestloop', 'off', true);
    FOR source IN
        SELECT array_agg(s.lane_id) AS lanes, array_agg(DISTINCT s.batch_id) AS batches
        FROM reuse_sources AS s
        GROUP BY s.part
        ORDER BY s.part
    LOOP
        WITH
        candidate AS (
            SELECT
                l.lane_id,
                l.ordinal,
                s.target_lane_no AS lane_no,
                s.lane_id AS source_lane,
                line.line_no AS source_line_no,
                s.complete,
                s.nth
            FROM reuse_sources AS s
            CROSS JOIN LATERAL (
                SELECT part.hashes, part.proofs, part.line_nos
                FROM batchline.line_hashes AS part
                WHERE part.file_no = s.file_no AND part.lane_no = s.lane_no
                OFFSET 0
            ) AS h
            CROSS JOIN LATERAL unnest(h.hashes, h.proofs, h.line_nos) AS line (hash, proof, line_no)
            JOIN reuse_left AS l ON l.hash = line.hash AND l.proof = line.proof AND l.lane_id = s.target
            WHERE s.lane_id = ANY (source.lanes)
              AND s.batch_id = ANY ((SELECT batchline.still_reusable_v1(source.batches))::uuid[])
        ),
        -- The newest, in the order of the lines.
        chosen AS (
            SELECT DISTINCT ON (c.lane_no, c.ordinal) c.*
            FROM candidate AS c
            WHERE c.complete
               OR EXISTS (
                   SELECT
                   FROM batchline.results AS r
                   WHERE r.lane_id = c.source_lane AND r.line_no = c.source_line_no AND r.outcome = 'completed'
               )
            ORDER BY c.lane_no, c.ordinal, c.nth
        ),
        copied AS (
            INSERT INTO batchline.results
                (lane_id, line_no, ordinal, outcome, status_code, attempt, input_tokens, output_tokens, output)
            SELECT
                c.lane_id,
                line.line_no,
                c.ordinal,
                'completed',
                answer.status_code,
                0,
                0,
                0,
                '{"id":"' || split_part(answer.output, '"', 4) || '","custom_id":' || to_json(line.custom_id)::text
                    || substr(answer.output, position(',"response":' IN answer.output))
            FROM chosen AS c
            JOIN batchline.lines AS line
                ON line.file_no = created.file_no AND line.lane_no = c.lane_no AND line.ordinal = c.ordinal
            CROSS JOIN LATERAL (
                SELECT *
                FROM batchline.results AS r
                WHERE r.lane_id = c.source_lane AND r.line_no = c.source_line_no
                LIMIT 1
            ) AS answer
            WHERE answer.outcome = 'completed'
              -- A line that batches/output.py has not composed is left alone.
              AND starts_with(answer.output, '{"id":"')
              AND position(',"response":' IN answer.output) > 0
            RETURNING lane_id, ordinal
        )
        DELETE FROM reuse_left AS l USING copied AS c WHERE l.lane_id = c.lane_id AND l.ordinal = c.ordinal;
        GET DIAGNOSTICS copies = ROW_COUNT;
        answers := answers + copies;
        EXIT WHEN answers = created.total;
        IF copies > 0 THEN
            -- Plan the next part for what is left, which may be little.
            ANALYZE reuse_left;
        END IF;
    END LOOP;
    PERFORM set_config('enable_nestloop', 'on', true);

    UPDATE batchline.lanes AS n
    SET next = last.ordinal + 1, drained = last.ordinal + 1 = n.total
    FROM (
        SELECT n.id, answer.ordinal
        FROM batchline.lanes AS n
        CROSS JOIN LATERAL (
            SELECT r.ordinal FROM batchline.results AS r WHERE r.lane_id = n.id ORDER BY r.line_no DESC LIMIT 1
        ) AS answer
        WHERE n.batch_id = batch
    ) AS last
    WHERE n.id = last.id AND n.batch_id = batch;

    INSERT INTO batchline.spans (lane_id, batch_id, outstanding)
    SELECT numbered.lane_id, batch, range_agg(int4range(numbered.ordinal, numbered.ordinal + 1))
    FROM (
        SELECT
            l.lane_id,
            l.ordinal,
            row_number() OVER (PARTITION BY l.lane_id ORDER BY l.ordinal) - 1 AS nth,
            count(*) OVER (PARTITION BY l.lane_id) AS size
        FROM reuse_left AS l
        JOIN batchline.lanes AS n ON n.id = l.lane_id AND n.batch_id = batch
        WHERE l.ordinal < n.next
    ) AS numbered
    GROUP BY numbered.lane_id, numbered.nth / greatest(500, numbered.size / 1000)
    ORDER BY numbered.lane_id, min(numbered.ordinal);

    UPDATE batchline.batches AS b SET completed = answers, reused = answers WHERE b.id = batch;
    DROP TABLE reuse_left, reuse_sources;
    IF answers = created.total THEN
        PERFORM batchline.freeze_v1(batch);
        -- Nobody will settle it, so an idle worker must look.
        PERFORM pg_notify('batchline', 'closed ' || batch);
    END IF;
    RETURN answers;
END
$$;
