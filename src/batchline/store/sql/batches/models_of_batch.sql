-- models_of_batch: the first models that lines of a batch name. No locks.
SELECT DISTINCT n.model FROM batchline.lanes AS n WHERE n.batch_id = %(batch)s ORDER BY n.model LIMIT 100
