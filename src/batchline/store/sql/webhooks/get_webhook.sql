-- get_webhook: a webhook of a tenant, by id.
SELECT * FROM batchline.webhooks WHERE id = %(webhook)s AND tenant = %(tenant)s
