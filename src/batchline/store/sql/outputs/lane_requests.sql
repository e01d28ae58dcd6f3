-- lane_requests: a template: the requests of one lane of a file, as lines of JSON, in input order.
(
    SELECT
        line_no,
        {before} || to_json(custom_id)::text || {between} || body || '}}' AS line
    FROM batchline.lines
    WHERE file_no = {file} AND lane_no = {lane_no}
    ORDER BY line_no
)
