-- claim_new: give the first lines of a batch that was just announced to an idle worker. See functions/claim_new_v2.sql.
SELECT * FROM batchline.claim_new_v2(
    %(worker)s, %(name)s, %(lease)s, %(keys)s, %(excluded)s, %(below)s, %(batch)s, %(limit)s::integer, %(sender)s
)
