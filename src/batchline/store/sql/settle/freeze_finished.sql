-- freeze_finished: begin to finalize a batch whose lines all have an outcome. See functions/freeze_finished_v1.sql.
SELECT batchline.freeze_finished_v1(%(batch)s)
