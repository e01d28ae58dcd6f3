-- next_file_no: the short name of a file whose lines are about to be written. A sequence never goes back,
-- so the number of a file that is refused is not used again.
SELECT nextval(pg_get_serial_sequence('batchline.files', 'no'))
