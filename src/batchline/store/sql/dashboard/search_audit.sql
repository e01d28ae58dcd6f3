-- search_audit: a tenant's audit log, newest first, after a position, by filters. `words` are searched in all texts of an entry.
--
-- Looks at no more than `chunk` entries. If there are so many, the last row is the last of them with `matches` false.
-- Cost: one range of an index. Locks: none.
WITH
candidate AS MATERIALIZED (
    SELECT a.*
    FROM batchline.audit_log AS a
    WHERE a.tenant = %(tenant)s AND a.id < %(after)s
    ORDER BY a.id DESC
    LIMIT %(chunk)s
),
found AS (
    SELECT c.*
    FROM candidate AS c
    WHERE (%(actor)s::text IS NULL OR c.actor = %(actor)s::text)
      AND (%(action)s::text IS NULL OR c.action = %(action)s::text)
      AND c.at >= %(since)s::timestamptz
      AND c.at < %(before)s::timestamptz
      AND (
          %(words)s::text IS NULL
          OR strpos(
              lower(concat_ws(' ', c.actor, c.action, c.subject, replace(c.batch_id::text, '-', ''), c.detail::text)), %(words)s::text
          ) > 0
      )
    ORDER BY c.id DESC
    LIMIT %(limit)s
)
SELECT id, at, tenant, actor, action, batch_id, sequence_no, subject, detail, true AS matches FROM found
UNION ALL
(
    SELECT c.id, c.at, c.tenant, c.actor, c.action, NULL, NULL, NULL, '{}', false
    FROM candidate AS c
    ORDER BY c.id DESC
    OFFSET %(chunk)s - 1
    LIMIT 1
)
ORDER BY matches DESC, id DESC
