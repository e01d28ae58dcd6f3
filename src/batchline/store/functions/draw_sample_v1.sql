-- draw_sample: draw random lines of a batch that are its first step. Returns how many were drawn.
--
-- Lines that have reused an answer are done, and are not drawn. All others count as claimed from now on, so that the
-- invariant holds whichever lines are drawn: the drawn ones are in free spans of a few lines, so that workers share them; all
-- others are in free spans of at most `chunk` lines that are held back.
--
-- begin_step calls this. It has locked the batch row, its lanes, and all its spans: before the first step, all are held back.
CREATE FUNCTION batchline.draw_sample_v1(batch uuid, lines integer, chunk integer DEFAULT 2000) RETURNS integer
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    few CONSTANT integer := 16;
    held_back CONSTANT timestamptz := '9999-12-31 00:00:00+00';
    all_lines integer := (SELECT b.total - b.completed FROM batchline.batches AS b WHERE b.id = batch);
    drawn integer;
BEGIN
    WITH
    gone AS (
        DELETE FROM batchline.spans AS s WHERE s.batch_id = batch RETURNING s.lane_id, s.outstanding
    ),
    -- Consecutive lines without an answer, numbered, and how many lines precede them.
    piece AS MATERIALIZED (
        SELECT
            run.lane_id,
            lower(run.ordinals) AS start,
            upper(run.ordinals) AS stop,
            row_number() OVER everything AS no,
            sum(upper(run.ordinals) - lower(run.ordinals)) OVER everything
            - (upper(run.ordinals) - lower(run.ordinals)) AS before
        FROM (
            SELECT gone.lane_id, unnest(gone.outstanding) AS ordinals FROM gone
            UNION ALL
            SELECT n.id, int4range(n.next, n.total) FROM batchline.lanes AS n WHERE n.batch_id = batch AND n.next < n.total
        ) AS run
        WINDOW everything AS (ORDER BY run.lane_id, lower(run.ordinals) ROWS UNBOUNDED PRECEDING)
    ),
    -- Of a large batch, more numbers are drawn than needed, because some are drawn twice.
    number AS (
        SELECT every.n
        FROM (
            SELECT n FROM generate_series(0, CASE WHEN all_lines <= 20 * lines THEN all_lines - 1 ELSE -1 END) AS n
            UNION
            SELECT floor(random() * all_lines)::integer
            FROM generate_series(1, CASE WHEN all_lines > 20 * lines THEN 2 * lines ELSE 0 END)
        ) AS every
        ORDER BY random()
        LIMIT lines
    ),
    -- The piece of a number is the last one that begins at it or before.
    placed AS (
        SELECT each.n, max(each.no) OVER (ORDER BY each.at, each.n NULLS FIRST ROWS UNBOUNDED PRECEDING) AS no
        FROM (
            SELECT piece.before AS at, piece.no, NULL::integer AS n FROM piece
            UNION ALL
            SELECT number.n, NULL, number.n FROM number
        ) AS each
    ),
    sample AS MATERIALIZED (
        SELECT
            piece.lane_id,
            (piece.start + placed.n - piece.before)::integer AS ordinal,
            row_number() OVER (PARTITION BY piece.lane_id ORDER BY placed.n) AS nth
        FROM placed
        JOIN piece ON piece.no = placed.no
        WHERE placed.n IS NOT NULL
    ),
    first AS (
        INSERT INTO batchline.spans (lane_id, batch_id, outstanding)
        SELECT lane_id, batch, range_agg(int4range(ordinal, ordinal + 1))
        FROM sample
        GROUP BY lane_id, (nth - 1) / few
    ),
    taken AS (
        SELECT lane_id, ordinal / chunk AS part, range_agg(int4range(ordinal, ordinal + 1)) AS ordinals
        FROM sample
        GROUP BY lane_id, ordinal / chunk
    ),
    whole AS (
        SELECT
            piece.lane_id,
            part,
            range_agg(int4range(greatest(piece.start, part * chunk), least(piece.stop, (part + 1) * chunk))) AS ordinals
        FROM piece
        CROSS JOIN LATERAL generate_series(piece.start / chunk, (piece.stop - 1) / chunk) AS part
        GROUP BY piece.lane_id, part
    ),
    rest AS (
        SELECT whole.lane_id, whole.ordinals - coalesce(taken.ordinals, '{}'::int4multirange) AS ordinals
        FROM whole
        LEFT JOIN taken ON taken.lane_id = whole.lane_id AND taken.part = whole.part
    ),
    later AS (
        INSERT INTO batchline.spans (lane_id, batch_id, outstanding, available_at)
        SELECT lane_id, batch, ordinals, held_back FROM rest WHERE NOT isempty(ordinals)
    ),
    passed AS (
        UPDATE batchline.lanes AS n SET next = n.total, drained = true WHERE n.batch_id = batch
    )
    SELECT count(*) INTO drawn FROM sample;
    RETURN drawn;
END
$$;
