-- answer_early: give duplicates of a running batch the answers that are there, those of the first span after `after`. See
-- functions/answer_duplicates_v1.sql. No row if the batch has no duplicates, or no span is left.
SELECT answer.answered, answer.span_id
FROM (SELECT d.batch_id FROM batchline.duplicates AS d WHERE d.batch_id = %(batch)s LIMIT 1) AS batch
CROSS JOIN LATERAL batchline.answer_duplicates_v1(batch.batch_id, true, %(after)s) AS answer
WHERE answer.span_id IS NOT NULL
