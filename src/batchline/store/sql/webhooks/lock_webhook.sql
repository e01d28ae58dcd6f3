-- lock_webhook: lock a webhook before settle_delivery. That statement must see every delivery that was created before,
-- so it is a separate statement that starts once this lock is held. Returns no row if another worker holds the lease
-- now, or the webhook is deleted.
SELECT id FROM batchline.webhooks WHERE id = %(webhook)s AND rests_until = %(lease_until)s FOR UPDATE
