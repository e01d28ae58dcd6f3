-- live_credentials: those of `hashes` that are still good: of sessions that have not expired and whose key is not revoked, and of keys that
-- are not revoked. One statement for all open event streams. Cost: two reads by unique indexes for each. Locks: none.
SELECT wanted.hash
FROM unnest(%(hashes)s::bytea[]) AS wanted (hash)
WHERE EXISTS (
    SELECT
    FROM batchline.browser_sessions AS s
    JOIN batchline.api_keys AS k ON k.id = s.key_id
    WHERE s.hash = wanted.hash AND s.expires_at > now() AND k.revoked_at IS NULL
)
OR EXISTS (SELECT FROM batchline.api_keys AS k WHERE k.hash = wanted.hash AND k.revoked_at IS NULL)
