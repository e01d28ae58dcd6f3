-- begin_step: let the next step of a batch run, or answer its duplicates, if it is time for it. See functions/begin_step_v2.sql.
SELECT batchline.begin_step_v2(%(batch)s)
