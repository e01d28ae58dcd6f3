-- find_planned_output: the batch whose output file will have this id, until that file exists. Uses a unique index.
SELECT *
FROM batchline.current_batches
WHERE planned_output_id = %(file)s AND tenant = %(tenant)s AND ended_at IS NULL
