-- count_causes: count the failures of a settle by their cause, and list causes that are new in the batch.
--
-- `counted` are the groups of the batch that were accepted and have a cause; see settle for the other parameters. Nothing else is
-- read of the arrays, so a settle of many batches reads each group once. A batch lists at most 100 causes, of which attempts
-- that are followed by another one add at most 50: so whatever upstreams say, a batch has few rows here. If they are not enough,
-- causes for which no line has failed give way: those of attempts, and those of failures that were put back. But not if failures
-- are not listed: a cause that is listed after some of its failures would count too few. Failures of causes that are not listed are in the batch's counter alone; list_causes.sql shows the difference as
-- "other".
--
-- Counts are appended to `cause_counts`, and the ones before deleted, as add_counts does (docs/decisions/0014). The example
-- is a line that has failed for good, if there is one: so it is changed once, by the first of them.
--
-- Called before add_counts, which may freeze the batch. Locks: the batch row; each statement after that sees what the last
-- settle has committed. Nothing is counted for a batch that was deleted.
CREATE FUNCTION batchline.count_causes_v1(
    batch uuid, counted bigint[], kinds smallint[], sizes integer[], ordinals int4multirange[], lanes bigint[],
    causes text[], cause_keys text[], cause_codes text[], cause_messages text[]
) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_column
DECLARE
    listed integer;
    tally record;
BEGIN
    PERFORM FROM batchline.batches AS b WHERE b.id = batch FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    SELECT
        array_agg(t.key) AS keys,
        array_agg(t.failed) AS failed,
        array_agg(t.lane) AS lanes,
        array_agg(t.ordinal) AS ordinals
    INTO tally
    FROM (
        SELECT
            causes[no] AS key,
            coalesce(sum(sizes[no]) FILTER (WHERE kinds[no] = 1), 0)::integer AS failed,
            (array_agg(lanes[no] ORDER BY kinds[no], no))[1] AS lane,
            (array_agg(lower(ordinals[no]) ORDER BY kinds[no], no))[1] AS ordinal
        FROM unnest(counted) AS no
        GROUP BY causes[no]
    ) AS t;

    SELECT count(*)::integer INTO listed FROM batchline.failure_causes AS f WHERE f.batch_id = batch;
    IF listed + cardinality(tally.keys) > 100 THEN
        DELETE FROM batchline.failure_causes AS f
        USING batchline.current_failure_causes AS c
        WHERE f.batch_id = batch AND c.batch_id = batch AND c.key = f.key AND c.failed = 0 AND f.key <> ALL (tally.keys)
          AND (SELECT b.failed FROM batchline.current_batches AS b WHERE b.id = batch)
            = (SELECT sum(every.failed) FROM batchline.current_failure_causes AS every WHERE every.batch_id = batch);
        SELECT count(*)::integer INTO listed FROM batchline.failure_causes AS f WHERE f.batch_id = batch;
    END IF;
    INSERT INTO batchline.failure_causes (batch_id, key, code, message, example_lane, example_ordinal)
    SELECT batch, new.key, new.code, new.message, new.lane, new.ordinal
    FROM (
        SELECT
            t.*,
            cause_codes[array_position(cause_keys, t.key)] AS code,
            cause_messages[array_position(cause_keys, t.key)] AS message,
            row_number() OVER (ORDER BY t.failed DESC, t.key) AS nth
        FROM unnest(tally.keys, tally.failed, tally.lanes, tally.ordinals) AS t (key, failed, lane, ordinal)
        WHERE NOT EXISTS (SELECT FROM batchline.failure_causes AS f WHERE f.batch_id = batch AND f.key = t.key)
    ) AS new
    WHERE listed + new.nth <= CASE WHEN new.failed > 0 THEN 100 ELSE 50 END;

    WITH
    before AS (
        SELECT f.key, t.failed AS more, t.lane, t.ordinal, c.seq, coalesce(c.failed, f.failed) AS failed
        FROM unnest(tally.keys, tally.failed, tally.lanes, tally.ordinals) AS t (key, failed, lane, ordinal)
        JOIN batchline.failure_causes AS f ON f.batch_id = batch AND f.key = t.key
        LEFT JOIN LATERAL (
            SELECT n.seq, n.failed
            FROM batchline.cause_counts AS n
            WHERE n.batch_id = batch AND n.key = f.key
            ORDER BY n.seq DESC
            LIMIT 1
        ) AS c ON true
        WHERE t.failed > 0
    ),
    added AS (
        INSERT INTO batchline.cause_counts (batch_id, key, failed)
        SELECT batch, key, failed + more FROM before
    ),
    replaced AS (
        DELETE FROM batchline.cause_counts AS c
        USING before
        WHERE c.batch_id = batch AND c.key = before.key AND c.seq = before.seq
    )
    UPDATE batchline.failure_causes AS f
    SET example_lane = before.lane, example_ordinal = before.ordinal
    FROM before
    WHERE f.batch_id = batch
      AND f.key = before.key
      AND before.failed = 0
      AND (f.example_lane, f.example_ordinal) IS DISTINCT FROM (before.lane, before.ordinal);
END
$$;
