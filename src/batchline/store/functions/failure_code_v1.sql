-- failure_code: the code of a failed result: `http_` and the status of the upstream's answer, or else the code in its error
-- line.
--
-- The line is searched as text. Every JSON function of PostgreSQL refuses a document with \u0000 anywhere in it, and a
-- quotation mark within a string is escaped, so what is found here is a key and not part of a value. A line that keeps an
-- answer which did not count has its error first, directly after the custom_id: the answer may have any keys.
CREATE FUNCTION batchline.failure_code_v1(status_code smallint, output text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN coalesce(
    'http_' || status_code,
    substring(output FROM '^\{"id":"[^"]*","custom_id":"(?:[^"\\]|\\.)*","error":\{"code":"([^"\\]{1,64})"'),
    substring(output FROM '"response":null,"error":\{"code":"([^"\\]{1,64})"'),
    'failed'
);
