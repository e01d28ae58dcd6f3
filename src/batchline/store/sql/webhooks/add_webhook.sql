-- add_webhook: add a webhook to a tenant, which may have `max_webhooks`. Two concurrent additions may exceed that by
-- one: the limit is only a protection against abuse.
INSERT INTO batchline.webhooks (id, tenant, name, url, events, secret)
SELECT %(webhook)s, %(tenant)s, %(name)s, %(url)s, %(events)s::text[], %(secret)s
WHERE (SELECT count(*) FROM batchline.webhooks WHERE tenant = %(tenant)s) < %(max_webhooks)s
RETURNING *
