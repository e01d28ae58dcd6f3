-- draw_sample: pause a new batch and draw random lines of it. See functions/draw_sample_v1.sql.
SELECT batchline.draw_sample_v1(%(batch)s, %(lines)s::integer)
