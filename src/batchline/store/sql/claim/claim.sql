-- claim: give up to `limit` lines to `worker`. See functions/claim_v1.sql.
SELECT * FROM batchline.claim_v1(
    %(worker)s, %(name)s, %(lease)s, %(keys)s, %(excluded)s, %(below)s, %(batch)s, %(limit)s::integer,
    %(max_tasks)s::integer, %(without)s::uuid[]
)
