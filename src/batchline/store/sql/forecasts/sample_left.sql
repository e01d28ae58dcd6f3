-- sample_left: whether lines that were drawn for the sample of a batch have not been run (claim_sample). No locks.
SELECT EXISTS (
    SELECT
    FROM batchline.batches AS b
    JOIN batchline.spans AS s ON s.batch_id = b.id AND s.available_at <> b.paused_at AND s.attempt = 1
    WHERE b.id = %(batch)s AND b.paused_by = 'sample'
)
