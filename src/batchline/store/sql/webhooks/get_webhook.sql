-- get_webhook: a tenant's own, by its id.
SELECT * FROM webhooks WHERE id = %(webhook)s AND tenant = %(tenant)s
