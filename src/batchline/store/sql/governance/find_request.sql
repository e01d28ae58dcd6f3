-- find_request: the batch that a user's request_id created for an operation, with the fingerprint of the request. Uses
-- a unique index.
SELECT batch_id, fingerprint
FROM batchline.operation_batches
WHERE tenant = %(tenant)s AND user_id = %(user)s AND operation = %(operation)s AND request_id = %(request_id)s
