-- hash_lines: store a hash for each line of a file, by which later batches find its answers. Returns the number of lines.
--
-- The hash is over model, url, body, and the number of identical lines before it: so the third of several identical lines only
-- ever matches the third of others, and no answer is used twice in one batch. It has 128 bits, `hash` and `proof`, and its two
-- seeds are random numbers of this database: nobody can make up two lines with the same hash (docs/decisions/0017).
--
-- Not part of ingest: only the files of batches that take part in a reuse need it, once. Changes nothing if it was done
-- before; of two at once, the second waits for the first. 4,096 lines share a row, in the order of their hashes, which makes
-- sorting them again fast.
--
-- Locks: the file's row, so that a deletion waits, and then finds these rows too.
CREATE FUNCTION batchline.hash_lines_v1(hashed_file_no bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET work_mem = '128MB'
AS $$
DECLARE
    seeds record;
    lines bigint;
BEGIN
    PERFORM FROM batchline.files AS f WHERE f.no = hashed_file_no AND f.deleted_at IS NULL FOR KEY SHARE;
    IF NOT FOUND OR EXISTS (SELECT FROM batchline.line_hashes AS h WHERE h.file_no = hashed_file_no) THEN
        RETURN 0;
    END IF;
    SELECT s.hash, s.proof INTO seeds FROM batchline.hash_seeds AS s;
    WITH
    line AS (
        SELECT
            l.lane_no,
            l.ordinal,
            l.line_no,
            hashtextextended(l.body, hashtextextended(part.url, hashtextextended(part.model, seeds.hash))) AS hash,
            hashtextextended(l.body, hashtextextended(part.url, hashtextextended(part.model, seeds.proof))) AS proof
        FROM batchline.file_lanes AS part
        JOIN batchline.lines AS l ON l.file_no = part.file_no AND l.lane_no = part.lane_no
        WHERE part.file_no = hashed_file_no
        -- A barrier: otherwise the sort below takes the bodies along, and the hashes are computed after it.
        OFFSET 0
    ),
    numbered AS (
        SELECT
            lane_no,
            (row_number() OVER (PARTITION BY lane_no ORDER BY hash, proof, ordinal) - 1) / 4096 AS part,
            hash,
            proof # (row_number() OVER (PARTITION BY lane_no, hash, proof ORDER BY ordinal) - 1) AS proof,
            ordinal,
            line_no
        FROM line
    ),
    stored AS (
        INSERT INTO batchline.line_hashes (file_no, lane_no, part, hashes, proofs, ordinals, line_nos)
        SELECT
            hashed_file_no, lane_no, part,
            array_agg(hash), array_agg(proof), array_agg(ordinal), array_agg(line_no)
        FROM numbered
        GROUP BY lane_no, part
        ON CONFLICT DO NOTHING
        RETURNING cardinality(hashes) AS size
    )
    SELECT coalesce(sum(size), 0) INTO lines FROM stored;
    RETURN lines;
END
$$;
