-- get_webhook: a tenant's own, by its id.
SELECT * FROM batchline.webhooks WHERE id = %(webhook)s AND tenant = %(tenant)s
