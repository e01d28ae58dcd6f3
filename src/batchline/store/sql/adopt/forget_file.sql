-- forget_file: drop what was copied of one file and of its batches, so that it is copied again. Before the cutover: there
-- is no batch and no lane with these numbers yet. The lines stay if there is a file: one that stayed after a rollback,
-- because a batch of Batchline's own uses it. Locks: these rows.
WITH
lane AS (
    DELETE FROM batchline.adopted_lanes AS n
    USING batchline.adopted_batches AS b
    WHERE b.file_no = %(file_no)s AND n.batch_id = b.batch_id
    RETURNING n.lane_id
),
result AS (
    DELETE FROM batchline.results AS r USING lane WHERE r.lane_id = lane.lane_id
),
batch AS (
    DELETE FROM batchline.adopted_batches WHERE file_no = %(file_no)s
),
line AS (
    DELETE FROM batchline.lines
    WHERE file_no = %(file_no)s AND NOT EXISTS (SELECT FROM batchline.files AS f WHERE f.no = %(file_no)s)
),
hash AS (
    DELETE FROM batchline.line_hashes
    WHERE file_no = %(file_no)s AND NOT EXISTS (SELECT FROM batchline.files AS f WHERE f.no = %(file_no)s)
),
numbered AS (
    DELETE FROM batchline.adopted_lines WHERE file_no = %(file_no)s
),
part AS (
    DELETE FROM batchline.adopted_file_lanes WHERE file_no = %(file_no)s
)
DELETE FROM batchline.adopted_files WHERE file_no = %(file_no)s
