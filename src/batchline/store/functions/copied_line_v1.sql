-- copied_line: the output line of a duplicate: its own id and custom_id, and then what the line of its leader has: the answer or
-- the error.
--
-- A line (batches/output.py) has the answer or the error after its custom_id, in which each quotation mark is escaped: so the first
-- of these two names is where the rest begins. A line that was composed otherwise stays as it is.
CREATE FUNCTION batchline.copied_line_v1(batch uuid, line_no integer, custom_id text, output text) RETURNS text
LANGUAGE sql IMMUTABLE
AS $$
SELECT coalesce(
    '{"id":"batch_req_' || replace(batch::text, '-', '') || '_' || line_no || '","custom_id":' || to_json(custom_id)::text
    || substr(
        output,
        least(nullif(position(',"response":' IN output), 0), nullif(position(',"error":' IN output), 0))
    ),
    output
)
$$;
