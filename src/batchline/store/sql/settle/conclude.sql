-- conclude: freeze a closing batch of which no live worker holds anything. See functions/conclude_v1.sql.
SELECT batchline.conclude_v1(%(batch)s)
