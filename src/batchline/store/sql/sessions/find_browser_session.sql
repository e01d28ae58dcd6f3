-- find_browser_session: the key of a session that has not expired, unless the key is revoked; and when the session expires. Two
-- reads by unique indexes. Locks: none.
SELECT k.id, k.name, k.tenant, k.role, k.hint, k.created_at, k.revoked_at, s.expires_at
FROM batchline.browser_sessions AS s
JOIN batchline.api_keys AS k ON k.id = s.key_id
WHERE s.hash = %(hash)s AND s.expires_at > now() AND k.revoked_at IS NULL
