-- find_idempotency_key: find the object that an idempotency key created, and the fingerprint of its request.
SELECT object_id, fingerprint
FROM batchline.idempotency
WHERE tenant = %(tenant)s AND scope = %(scope)s AND key = %(key)s
