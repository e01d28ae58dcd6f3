-- remember_made: what a key of the caller's choosing makes, in the transaction that makes it. Returns no row when the
-- key has made something already; find_made, a statement of its own, then sees it.
--
-- Locks: the key's place in the index. A second one with the same key waits there for the first to commit, and finds
-- it, or for it to fail, and takes its place.
INSERT INTO batchline.idempotency (tenant, scope, key, fingerprint, object_id)
VALUES (%(tenant)s, %(scope)s, %(key)s, %(fingerprint)s, %(object)s)
ON CONFLICT (tenant, scope, key) DO NOTHING
RETURNING object_id
