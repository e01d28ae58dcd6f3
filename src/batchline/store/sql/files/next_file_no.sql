-- next_file_no: the number of a file whose lines are about to be written. A sequence never goes back, so the number of
-- a refused file is not used again.
SELECT nextval(pg_get_serial_sequence('batchline.files', 'no'))
