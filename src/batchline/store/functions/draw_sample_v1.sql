-- draw_sample: pause a new batch and draw random lines of it, to run before the rest.
--
-- All lines count as claimed from now on, so that the invariant holds whichever lines are drawn: the drawn ones are in free
-- spans of a few lines that are available since 1970, which marks them; all others are in free spans of `chunk` lines. The
-- lanes are closed, so that no claim takes any of them before the batch is resumed, except claim_sample, which takes the
-- drawn ones. Returns how many were drawn.
--
-- Call it in the transaction that creates the batch: then no worker has claimed a line of it before.
-- Locks: the batch row, then its lanes in id order, as close does.
CREATE FUNCTION batchline.draw_sample_v1(batch uuid, lines integer, chunk integer DEFAULT 2000) RETURNS integer
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    few CONSTANT integer := 16;
    all_lines integer;
    drawn integer;
BEGIN
    UPDATE batchline.batches AS b
    SET paused_at = now(), paused_by = 'sample'
    WHERE b.id = batch
    RETURNING b.total INTO all_lines;
    PERFORM FROM batchline.lanes AS n WHERE n.batch_id = batch ORDER BY n.id FOR NO KEY UPDATE;

    WITH
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
    lane AS (
        SELECT n.id, n.total, sum(n.total) OVER (ORDER BY n.id) - n.total AS before
        FROM batchline.lanes AS n
        WHERE n.batch_id = batch
    ),
    sample AS MATERIALIZED (
        SELECT
            lane.id AS lane_id,
            (number.n - lane.before)::integer AS ordinal,
            row_number() OVER (PARTITION BY lane.id ORDER BY number.n) AS nth
        FROM number
        JOIN lane ON number.n >= lane.before AND number.n < lane.before + lane.total
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
    rest AS (
        SELECT
            lane.id AS lane_id,
            int4multirange(int4range(start, least(start + chunk, lane.total)))
            - coalesce(taken.ordinals, '{}'::int4multirange) AS ordinals
        FROM lane
        CROSS JOIN LATERAL generate_series(0, lane.total - 1, chunk) AS start
        LEFT JOIN taken ON taken.lane_id = lane.id AND taken.part = start / chunk
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
