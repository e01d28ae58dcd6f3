-- create_action: an action on many batches, for any worker to do, unless its tenant has `max_running` of them. Locks: none.
INSERT INTO batchline.bulk_actions (id, tenant, actor, role, alone, action, value, filter, matching)
SELECT
    %(id)s, %(tenant)s, %(actor)s, %(role)s, %(alone)s, %(action)s, %(value)s::smallint, %(filter)s,
    %(matching)s::integer
WHERE (
    SELECT count(*) FROM batchline.bulk_actions AS a WHERE a.tenant = %(tenant)s AND a.ended_at IS NULL
) < %(max_running)s::integer
RETURNING *, pg_notify('batchline', 'action ' || id) IS NULL AS notified
