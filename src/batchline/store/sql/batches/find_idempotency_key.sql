-- find_made: what a key of the caller's choosing has made, and of what.
SELECT object_id, fingerprint
FROM batchline.idempotency
WHERE tenant = %(tenant)s AND scope = %(scope)s AND key = %(key)s
