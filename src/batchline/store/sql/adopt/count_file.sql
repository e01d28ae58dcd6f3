-- count_file: record the number of lines of a file that was numbered in the same transaction. Locks: its row.
UPDATE batchline.adopted_files SET line_count = %(lines)s, not_post = %(not_post)s WHERE file_no = %(file_no)s
