-- living_daemons: old daemons that may still send requests: those with a heartbeat within `seconds`; and, unless the operator
-- knows better (`by_claims` is false), those without a heartbeat that claimed a request within `seconds`. Locks: none.
SELECT d.id::text, d.last_heartbeat AS seen_at
FROM batchline.source_daemons AS d
WHERE d.status <> 'dead' AND d.last_heartbeat > now() - make_interval(secs => %(seconds)s)
UNION ALL
SELECT coalesce(r.daemon_id::text, 'unknown'), max(greatest(r.claimed_at, r.started_at))
FROM batchline.source_requests AS r
WHERE %(by_claims)s::boolean
  AND r.state IN ('claimed', 'processing')
  AND greatest(r.claimed_at, r.started_at) > now() - make_interval(secs => %(seconds)s)
  AND NOT EXISTS (SELECT FROM batchline.source_daemons AS d WHERE d.id = r.daemon_id)
GROUP BY r.daemon_id
ORDER BY 1
