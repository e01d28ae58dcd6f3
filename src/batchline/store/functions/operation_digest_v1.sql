-- operation_digest: a digest of all that an approval of a governed batch is about: the operation, how it runs, every child in
-- order, and the results so far, of a sample. Whatever is added or changed changes the digest.
--
-- One pass over the children and their results. No locks; an approval calls it under the batch's row lock.
CREATE FUNCTION batchline.operation_digest_v1(batch uuid) RETURNS text
LANGUAGE plpgsql STABLE
AS $$
BEGIN
RETURN (
    SELECT encode(sha256(convert_to(
        jsonb_build_array(
            o.operation,
            b.settings,
            (
                SELECT string_agg(encode(sha256(convert_to(
                    jsonb_build_array(n.url, n.model, l.line_no, l.custom_id, l.body)::text, 'UTF8'
                )), 'hex'), '' ORDER BY l.line_no)
                FROM batchline.lanes AS n
                JOIN batchline.lines AS l ON l.file_no = n.file_no AND l.lane_no = n.lane_no
                WHERE n.batch_id = b.id
            ),
            (
                SELECT string_agg(encode(sha256(convert_to(
                    jsonb_build_array(r.line_no, r.outcome, r.attempt, r.output)::text, 'UTF8'
                )), 'hex'), '' ORDER BY r.line_no)
                FROM batchline.lanes AS n
                JOIN batchline.results AS r ON r.lane_id = n.id
                WHERE n.batch_id = b.id
            )
        )::text,
        'UTF8'
    )), 'hex')
    FROM batchline.operation_batches AS o
    JOIN batchline.batches AS b ON b.id = o.batch_id
    WHERE o.batch_id = batch
);
END
$$;
