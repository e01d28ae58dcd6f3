-- verify_lines: compare copied lines with their templates, one in `one_in` of them. Returns how many were compared, how many
-- differ, and the custom_id of one that does. Locks: none.
SELECT
    count(*)::bigint,
    count(*) FILTER (WHERE differs)::bigint,
    min(custom_id) FILTER (WHERE differs)
FROM (
    SELECT
        coalesce(l.custom_id, t.custom_id, a.template_id::text) AS custom_id,
        (l.custom_id, l.body, p.model, p.url) IS DISTINCT FROM (
            coalesce(t.custom_id, t.id::text), translate(t.body, E'\n\r\t', '   '), t.model, t.url
        ) AS differs
    FROM batchline.adopted_lines AS a
    LEFT JOIN batchline.source_templates AS t ON t.id = a.template_id
    LEFT JOIN batchline.adopted_file_lanes AS p ON p.file_no = a.file_no AND p.lane_no = a.lane_no
    LEFT JOIN batchline.lines AS l ON l.file_no = a.file_no AND l.lane_no = a.lane_no AND l.ordinal = a.ordinal
    WHERE mod(hashtext(a.template_id::text)::bigint, %(one_in)s::bigint) = 0
) AS compared
