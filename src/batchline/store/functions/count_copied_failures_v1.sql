-- count_copied_failures: count failures that were copied from leaders to their duplicates, by cause: one element of `ordinals` and
-- `causes` for each, all of one lane.
--
-- The cause of a leader is listed, or its batch lists too many: then that of its duplicates is not listed either, because a cause
-- that is listed late would count too few (count_causes).
--
-- Locks: the batch row, held by the caller.
CREATE FUNCTION batchline.count_copied_failures_v1(batch uuid, lane bigint, ordinals integer[], causes text[]) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_column
DECLARE
    tally record;
BEGIN
    SELECT
        array_agg(t.nth) AS counted,
        array_agg(1::smallint) AS kinds,
        array_agg(t.items) AS sizes,
        array_agg(t.ordinals) AS ordinals,
        array_agg(lane) AS lanes,
        array_agg(t.key) AS keys,
        array_agg(t.code) AS codes,
        array_agg(t.message) AS messages
    INTO tally
    FROM (
        SELECT
            f.key,
            f.code,
            f.message,
            count(*)::integer AS items,
            range_agg(int4range(each.ordinal, each.ordinal + 1)) AS ordinals,
            row_number() OVER () AS nth
        FROM unnest(ordinals, causes) AS each (ordinal, cause)
        JOIN batchline.failure_causes AS f ON f.batch_id = batch AND f.key = each.cause
        GROUP BY f.key, f.code, f.message
    ) AS t;
    IF tally.counted IS NOT NULL THEN
        PERFORM batchline.count_causes_v1(
            batch, tally.counted, tally.kinds, tally.sizes, tally.ordinals, tally.lanes, tally.keys,
            tally.keys, tally.codes, tally.messages
        );
    END IF;
END
$$;
