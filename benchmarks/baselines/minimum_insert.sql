-- minimum_insert: a result for each line.
INSERT INTO results (line_number, output)
SELECT v.line_number, v.output
FROM unnest(%(lines)b::integer[], %(outputs)b::text[]) AS v (line_number, output)
