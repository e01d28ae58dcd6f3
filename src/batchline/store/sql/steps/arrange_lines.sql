-- arrange_lines: find the duplicates of a new batch, and put its lines in order. See functions/arrange_lines_v1.sql.
SELECT batchline.arrange_lines_v1(%(batch)s)
