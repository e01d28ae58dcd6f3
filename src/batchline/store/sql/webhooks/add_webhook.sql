-- add_webhook: one more for a tenant, which may have `max_webhooks`. Two at once may both find room for the last:
-- the bound is against abuse, not a count to rely on.
INSERT INTO batchline.webhooks (id, tenant, name, url, events, secret)
SELECT %(webhook)s, %(tenant)s, %(name)s, %(url)s, %(events)s::text[], %(secret)s
WHERE (SELECT count(*) FROM batchline.webhooks WHERE tenant = %(tenant)s) < %(max_webhooks)s
RETURNING *
