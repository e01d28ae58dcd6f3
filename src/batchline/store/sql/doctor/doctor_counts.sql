-- doctor_counts: numbers of rows that the doctor checks: in total, or of one batch.
WITH
lane AS (
    SELECT id FROM batchline.lanes WHERE %(batch)s::uuid IS NULL OR batch_id = %(batch)s::uuid
)
SELECT
    (SELECT count(*) FROM batchline.batches WHERE %(batch)s::uuid IS NULL OR id = %(batch)s::uuid) AS batches,
    (SELECT count(*) FROM lane) AS lanes,
    (SELECT count(*) FROM batchline.spans WHERE %(batch)s::uuid IS NULL OR batch_id = %(batch)s::uuid) AS spans,
    (SELECT count(*) FROM batchline.results JOIN lane ON lane.id = results.lane_id) AS results
