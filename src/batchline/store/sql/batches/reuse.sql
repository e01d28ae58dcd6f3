-- reuse: see functions/reuse_v1.sql.
SELECT batchline.reuse_v1(%(batch)s)
