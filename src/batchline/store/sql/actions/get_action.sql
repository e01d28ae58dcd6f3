-- get_action: one action of a tenant. No locks.
SELECT * FROM batchline.bulk_actions WHERE id = %(id)s AND tenant = %(tenant)s
