-- hash_lines: see functions/hash_lines_v1.sql.
SELECT batchline.hash_lines_v1(%(file_no)s)
