-- draw_sample: pause a new batch and draw random lines of it, to run before the rest.
--
-- Lines that have reused an answer are done, and are not drawn. All others count as claimed from now on, so that the
-- invariant holds whichever lines are drawn: the drawn ones are in free spans of a few lines that are available since 1970,
-- which marks them; all others are in free spans of at most `chunk` lines. The lanes are closed, so that no claim takes any of
-- them before the batch is resumed, except claim_sample, which takes the drawn ones. Returns how many were drawn: none if all
-- answers were reused; then the batch is not paused.
--
-- Call it in the transaction that creates the batch, after reuse: then no worker has claimed a line of it before.
-- Locks: the batch row, then its lanes in id order, as close does.
CREATE FUNCTION batchline.draw_sample_v1(batch uuid, lines integer, chunk integer DEFAULT 2000) RETURNS integer
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    few integer;
    all_lines integer;
    drawn integer;
BEGIN
    UPDATE batchline.batches AS b
    SET paused_at = now(), paused_by = 'sample'
    WHERE b.id = batch AND b.finalizing_at IS NULL
    -- Lines of a provider are claimed one by one, because they count as tasks.
    RETURNING b.total - b.completed, CASE WHEN b.settings ? 'provider' THEN 1 ELSE 16 END INTO all_lines, few;
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    PERFORM FROM batchline.lanes AS n WHERE n.batch_id = batch ORDER BY n.id FOR NO KEY UPDATE;

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
        INSERT INTO batchline.spans (lane_id, batch_id, outstanding, available_at)
        SELECT lane_id, batch, range_agg(int4range(ordinal, ordinal + 1)), to_timestamp(0)
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
        INSERT INTO batchline.spans (lane_id, batch_id, outstanding)
        SELECT lane_id, batch, ordinals FROM rest WHERE NOT isempty(ordinals)
    ),
    shut AS (
        UPDATE batchline.lanes AS n SET open = false, next = n.total, drained = true WHERE n.batch_id = batch
    )
    SELECT count(*) INTO drawn FROM sample;
    PERFORM pg_notify('batchline', 'closed ' || batch);
    RETURN drawn;
END
$$;
