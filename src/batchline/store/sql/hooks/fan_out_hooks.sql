-- fan_out_hooks: create one delivery of an event that ends a batch for each hook, and notify the workers. Returns the number of new
-- deliveries. Safe to repeat: a hook gets an event once. A callback of a Python app has the url of an operation in its name
-- (operations/callbacks.py), and gets events of batches of that operation only. Locks: the event, so that its deletion waits
-- for the deliveries; and the new rows, in order of hook.
WITH
delivery AS (
    INSERT INTO batchline.hook_deliveries (hook, event_id, batch_id, type, occurred_at)
    SELECT h.name, o.id, o.batch_id, o.type, o.created_at
    FROM batchline.outbox AS o
    CROSS JOIN batchline.hooks AS h
    WHERE o.id = %(event)s
      AND o.type = ANY (%(ends)s)
      AND (
          h.name NOT LIKE 'python:%%/%%'
          OR EXISTS (
              SELECT FROM batchline.batches AS b
              WHERE b.id = o.batch_id AND b.endpoint = split_part(h.name, '/', 1)
          )
      )
    ORDER BY h.name
    FOR KEY SHARE OF o
    ON CONFLICT DO NOTHING
    RETURNING batch_id
)
SELECT count(*), pg_notify('batchline', 'hook ' || batch_id) IS NULL AS notified
FROM delivery
GROUP BY batch_id
