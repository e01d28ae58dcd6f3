-- arrange_lines: put the lines of a new batch into free spans, as its settings ask for: without duplicates (`dedupe`), and in
-- the order of their prompts (`order`). Returns the number of duplicates.
--
-- Of identical lines (model, url and body), the first one is sent, or none if one of them has a reused answer: that is their
-- leader. The others are its duplicates: they are held back in spans that are available in the year 9999, as lines of a later
-- step are (begin_step), and `duplicates` says whose answer each of them gets. The batch counts as one that runs in steps:
-- when all others have ended, answer_duplicates is the next step. Lines are compared by their hashes, as for a reuse
-- (hash_lines); the number of identical lines before is in the lower half of `proof`, so its upper half is compared.
--
-- Order: claims take free spans in the order of their ids. So the lines of one span, and of spans with ids in a row, have
-- prompts that begin alike (prompt_key). Few lines per span, because a claim that splits one takes its first lines.
--
-- The cursors pass all lines, so the invariant holds: each line has a reused answer or is in one span. Without duplicates and
-- without an order, nothing changes.
--
-- Runs in the transaction that creates the batch, after reuse: nobody else sees the batch before. Locks: that of hash_lines,
-- and rows that this transaction has created. Nested loops are off for the joins of all lines: a plan knows no numbers.
CREATE FUNCTION batchline.arrange_lines_v1(batch uuid) RETURNS integer
LANGUAGE plpgsql VOLATILE
SET work_mem = '128MB'
SET enable_nestloop = on
AS $$
#variable_conflict use_column
DECLARE
    held_back CONSTANT timestamptz := '9999-12-31 00:00:00+00';
    created record;
    lines integer;
    held integer;
BEGIN
    PERFORM batchline.require_read_committed_v1();
    SELECT
        f.no AS file_no,
        b.total - b.completed AS unanswered,
        coalesce((b.settings ->> 'dedupe')::boolean, false) AS dedupe,
        b.settings ? 'order' AS ordered
    INTO created
    FROM batchline.batches AS b
    JOIN batchline.files AS f ON f.id = b.file_id
    -- A batch whose answers are all reused is frozen.
    WHERE b.id = batch AND b.finalizing_at IS NULL;
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    IF created.dedupe THEN
        PERFORM batchline.hash_lines_v1(created.file_no);
    END IF;
    PERFORM set_config('enable_nestloop', 'off', true);
    CREATE TEMP TABLE arranged_lines ON COMMIT DROP AS
    WITH
    line AS (
        SELECT n.id AS lane_id, each.ordinal, each.line_no, each.hash, each.proof >> 32 AS proof
        FROM batchline.lanes AS n
        JOIN batchline.line_hashes AS h ON h.file_no = n.file_no AND h.lane_no = n.lane_no
        CROSS JOIN LATERAL unnest(h.ordinals, h.line_nos, h.hashes, h.proofs) AS each (ordinal, line_no, hash, proof)
        WHERE n.batch_id = batch AND h.file_no = created.file_no AND created.dedupe
        UNION ALL
        -- Without hashes, no line is like another.
        SELECT n.id, l.ordinal, l.line_no, l.ordinal, 0
        FROM batchline.lanes AS n
        JOIN batchline.lines AS l ON l.file_no = n.file_no AND l.lane_no = n.lane_no
        WHERE n.batch_id = batch AND l.file_no = created.file_no AND NOT created.dedupe
    ),
    reused AS (
        SELECT n.id AS lane_id, answer.line_no
        FROM batchline.lanes AS n
        CROSS JOIN LATERAL (SELECT r.line_no FROM batchline.results AS r WHERE r.lane_id = n.id OFFSET 0) AS answer
        WHERE n.batch_id = batch
    ),
    compared AS (
        SELECT
            line.lane_id,
            line.ordinal,
            line.line_no,
            reused.line_no IS NOT NULL AS answered,
            first_value(line.line_no) OVER (
                PARTITION BY line.lane_id, line.hash, line.proof ORDER BY reused.line_no IS NULL, line.ordinal
            ) AS leader
        FROM line
        LEFT JOIN reused ON reused.lane_id = line.lane_id AND reused.line_no = line.line_no
    )
    SELECT lane_id, ordinal, line_no, nullif(leader, line_no) AS leader FROM compared WHERE NOT answered;
    SELECT count(*), count(leader) INTO lines, held FROM arranged_lines;
    IF lines <> created.unanswered THEN
        -- Lines that are in no span would never run, and the batch would never end.
        RAISE EXCEPTION USING MESSAGE =
            'batch ' || batch || ' has ' || created.unanswered || ' lines without an answer, but ' || lines || ' were arranged';
    END IF;
    IF held = 0 AND NOT created.ordered THEN
        DROP TABLE arranged_lines;
        RETURN 0;
    END IF;

    -- Those of reuse.
    DELETE FROM batchline.spans AS s WHERE s.batch_id = batch;
    IF created.ordered THEN
        INSERT INTO batchline.spans (lane_id, batch_id, outstanding)
        SELECT each.lane_id, batch, range_agg(int4range(each.ordinal, each.ordinal + 1))
        FROM (
            SELECT
                a.lane_id,
                a.ordinal,
                row_number() OVER (PARTITION BY a.lane_id ORDER BY prompt.key, a.ordinal) - 1 AS nth,
                count(*) OVER (PARTITION BY a.lane_id) AS size
            FROM arranged_lines AS a
            JOIN batchline.lanes AS n ON n.id = a.lane_id AND n.batch_id = batch
            JOIN batchline.lines AS l ON l.file_no = n.file_no AND l.lane_no = n.lane_no AND l.ordinal = a.ordinal
            -- A barrier: otherwise the sort takes the bodies along.
            CROSS JOIN LATERAL (SELECT batchline.prompt_key_v1(l.body) AS key OFFSET 0) AS prompt
            WHERE a.leader IS NULL AND l.file_no = created.file_no
        ) AS each
        GROUP BY each.lane_id, each.nth / greatest(32, each.size / 10000)
        ORDER BY each.lane_id, min(each.nth);
    ELSE
        INSERT INTO batchline.spans (lane_id, batch_id, outstanding)
        SELECT each.lane_id, batch, range_agg(int4range(each.ordinal, each.ordinal + 1))
        FROM (
            SELECT
                a.lane_id,
                a.ordinal,
                row_number() OVER (PARTITION BY a.lane_id ORDER BY a.ordinal) - 1 AS nth,
                count(*) OVER (PARTITION BY a.lane_id) AS size
            FROM arranged_lines AS a
            WHERE a.leader IS NULL
        ) AS each
        -- As in reuse.
        GROUP BY each.lane_id, each.nth / greatest(500, each.size / 1000)
        ORDER BY each.lane_id, min(each.nth);
    END IF;
    WITH
    part AS MATERIALIZED (
        SELECT
            each.lane_id,
            min(each.ordinal) AS first,
            array_agg(each.ordinal ORDER BY each.ordinal) AS ordinals,
            array_agg(each.line_no ORDER BY each.ordinal) AS line_nos,
            array_agg(each.leader ORDER BY each.ordinal) AS leaders,
            range_agg(int4range(each.ordinal, each.ordinal + 1)) AS outstanding
        FROM (
            SELECT a.*, (row_number() OVER (PARTITION BY a.lane_id ORDER BY a.ordinal) - 1) / 2000 AS part
            FROM arranged_lines AS a
            WHERE a.leader IS NOT NULL
        ) AS each
        GROUP BY each.lane_id, each.part
    ),
    known AS (
        INSERT INTO batchline.duplicates (batch_id, lane_id, first, ordinals, line_nos, leaders)
        SELECT batch, lane_id, first, ordinals, line_nos, leaders FROM part
    )
    INSERT INTO batchline.spans (lane_id, batch_id, outstanding, available_at)
    SELECT lane_id, batch, outstanding, held_back FROM part ORDER BY lane_id, first;
    DROP TABLE arranged_lines;
    UPDATE batchline.lanes AS n SET next = n.total, drained = true WHERE n.batch_id = batch;
    IF held > 0 THEN
        -- Step 0 would be a sample.
        UPDATE batchline.batches AS b
        SET step = 1,
            step_began_at = now(),
            step_total = b.total - held,
            next_step_at = CASE WHEN b.completed = b.total - held THEN now() END
        WHERE b.id = batch;
    END IF;
    RETURN held;
END
$$;
