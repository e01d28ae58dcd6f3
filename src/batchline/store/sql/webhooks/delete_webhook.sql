-- delete_webhook: with its deliveries. What is being sent to it just now may still arrive.
DELETE FROM batchline.webhooks WHERE id = %(webhook)s AND tenant = %(tenant)s RETURNING id
