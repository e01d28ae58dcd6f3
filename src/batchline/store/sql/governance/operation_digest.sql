-- operation_digest: a digest of what an approval of a governed batch is about. See functions/operation_digest_v1.sql.
SELECT batchline.operation_digest_v1(%(batch)s)
