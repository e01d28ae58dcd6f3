-- open_chunks: how many chunks of each routing key in the scope, and of each API that they were formed for, have lines without a verdict, and how many lines they had. No locks.
SELECT c.upstream, c.base_url, c.api, count(*), sum(c.lines)
FROM batchline.provider_chunks AS c
CROSS JOIN LATERAL (SELECT * FROM batchline.spans WHERE spans.id = c.span_id LIMIT 1) AS s
WHERE c.state <> 'done'
  AND s.task_id = 'chunk:' || c.id
  AND (%(batch)s::uuid IS NULL OR c.batch_id = %(batch)s::uuid)
  AND batchline.in_scope_v1(c.upstream, %(keys)s::text[], %(excluded)s::text[], %(below)s::text[])
GROUP BY c.upstream, c.base_url, c.api
ORDER BY c.upstream, c.base_url, c.api
