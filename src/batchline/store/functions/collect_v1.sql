-- collect: when all other items of a batch have ended, begin its next stage that collects the results of another one.
-- Returns whether items were added, so that the batch is not finished.
--
-- `settings.collects` lists such stages in order: the url of the stage, that of its source, and whether it collects by key.
-- Without a key, the stage gets one item, whose body is null. By key, it gets one item for each key of a completed item of the
-- source: its body has the line numbers of these items, so that their results can be read by the key of `results`. A stage that gets
-- no item is passed over.
--
-- The caller holds the lock on the batch row, and has appended its counters in a statement before this one. Locks: none.
-- Cost: by key, one pass over the lines and results of the source, once per batch.
CREATE FUNCTION batchline.collect_v1(batch uuid) RETURNS boolean
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_variable
DECLARE
    facts record;
    ids text[];
    bodies text[];
BEGIN
    LOOP
        SELECT b.settings -> 'collects' -> b.collected::integer AS stage, c.total, c.cancelling_at IS NOT NULL OR c.expiring_at IS NOT NULL AS closing
        INTO facts
        FROM batchline.batches AS b
        JOIN batchline.current_batches AS c ON c.id = b.id
        WHERE b.id = batch;
        IF facts.stage IS NULL OR facts.closing THEN
            RETURN false;
        END IF;
        UPDATE batchline.batches AS b SET collected = b.collected + 1 WHERE b.id = batch;
        ids := ARRAY[''];
        bodies := ARRAY['null'];
        IF (facts.stage ->> 'by_key')::boolean THEN
            SELECT coalesce(array_agg(k.custom_id ORDER BY k.first), '{}'), coalesce(array_agg(k.body ORDER BY k.first), '{}')
            INTO ids, bodies
            FROM (
                SELECT l.custom_id, min(l.line_no) AS first, json_agg(l.line_no ORDER BY l.ordinal)::text AS body
                FROM batchline.lanes AS n
                JOIN batchline.results AS r ON r.lane_id = n.id AND r.outcome = 'completed'
                JOIN batchline.lines AS l ON l.file_no = n.file_no AND l.lane_no = n.lane_no AND l.ordinal = r.ordinal
                WHERE n.batch_id = batch AND n.url = facts.stage ->> 'source'
                GROUP BY l.custom_id
            ) AS k;
        END IF;
        CONTINUE WHEN cardinality(ids) = 0;
        PERFORM batchline.add_counts_v1(
            batch, 0, 0, 0, 0, 0, 0, 0, cardinality(ids), (SELECT sum(octet_length(body)) FROM unnest(bodies) AS body)::bigint
        );
        PERFORM batchline.emit_v1(
            batch, facts.total + 1, array_fill(facts.stage ->> 'url', ARRAY[cardinality(ids)]), ids, bodies
        );
        RETURN true;
    END LOOP;
END
$$;
