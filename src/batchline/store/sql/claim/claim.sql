-- claim: give up to `limit` lines to `worker`. See functions/claim_v2.sql.
SELECT * FROM batchline.claim_v2(
    %(worker)s, %(name)s, %(lease)s, %(keys)s, %(excluded)s, %(below)s, %(batch)s, %(limit)s::integer,
    %(max_tasks)s::integer, %(without)s::uuid[], %(sender)s
)
