-- note_failures: see functions/note_failures_v1.sql.
SELECT batchline.note_failures_v1(%(batch)s)
