-- conclude: freeze a closing batch of which no live worker holds anything. See functions/conclude_v2.sql.
SELECT batchline.conclude_v2(%(batch)s)
