-- delete_webhook: delete a webhook with its deliveries. A message that is being sent may still arrive.
DELETE FROM batchline.webhooks WHERE id = %(webhook)s AND tenant = %(tenant)s RETURNING id
