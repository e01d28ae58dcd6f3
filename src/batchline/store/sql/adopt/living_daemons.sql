-- living_daemons: old daemons that may still send requests: those with a heartbeat within `seconds`; where there is no
-- table of daemons, claims within `seconds` that are not finished, by daemon. Locks: none.
SELECT d.id::text, d.last_heartbeat AS seen_at
FROM batchline.source_daemons AS d
WHERE d.status <> 'dead' AND d.last_heartbeat > now() - make_interval(secs => %(seconds)s)
UNION ALL
SELECT coalesce(r.daemon_id::text, 'unknown'), max(greatest(r.claimed_at, r.started_at))
FROM batchline.source_requests AS r
WHERE NOT %(has_daemons)s::boolean
  AND r.state IN ('claimed', 'processing')
  AND greatest(r.claimed_at, r.started_at) > now() - make_interval(secs => %(seconds)s)
GROUP BY r.daemon_id
ORDER BY 1
