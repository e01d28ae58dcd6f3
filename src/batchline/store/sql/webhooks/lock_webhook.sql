-- lock_webhook: the first half of settling a delivery. The second must see every delivery that was fanned out
-- before, so it is a statement of its own that begins when this lock is held. No row: the lease is another
-- one's by now, or the webhook is deleted.
SELECT id FROM batchline.webhooks WHERE id = %(webhook)s AND rests_until = %(lease_until)s FOR UPDATE
