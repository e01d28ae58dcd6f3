-- add_browser_session: sign a browser in with a key that is not revoked. `hash` is that of the cookie's secret. Of a key, at most `maximum`
-- sessions stay: the oldest are deleted; and so are 100 expired ones of anybody. Returns no row if the key was revoked meanwhile.
-- Locks: the key's row against its revocation; the rows that are deleted, skipping those that others delete.
WITH
key AS (
    SELECT k.id FROM batchline.api_keys AS k WHERE k.id = %(key)s AND k.revoked_at IS NULL FOR SHARE
),
expired AS (
    DELETE FROM batchline.browser_sessions AS s
    USING (
        SELECT e.hash
        FROM batchline.browser_sessions AS e
        WHERE e.expires_at < now()
        ORDER BY e.expires_at
        LIMIT 100
        FOR UPDATE SKIP LOCKED
    ) AS old
    WHERE s.hash = old.hash
),
surplus AS (
    DELETE FROM batchline.browser_sessions AS s
    USING (
        SELECT e.hash
        FROM batchline.browser_sessions AS e
        WHERE e.key_id = %(key)s AND e.expires_at >= now()
        ORDER BY e.created_at DESC
        OFFSET %(maximum)s - 1
        FOR UPDATE SKIP LOCKED
    ) AS old
    WHERE s.hash = old.hash
)
INSERT INTO batchline.browser_sessions (hash, key_id, expires_at)
SELECT %(hash)s, key.id, now() + %(lifetime)s * interval '1 second'
FROM key
RETURNING expires_at
