-- begin_step: let the next step of a batch run, if it is time for it. See functions/begin_step_v1.sql.
SELECT batchline.begin_step_v1(%(batch)s)
