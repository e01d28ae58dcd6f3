-- add_event: record an event of a batch in the transaction that makes it true; an outbox delivers it.
WITH
event AS (
    INSERT INTO batchline.outbox (id, batch_id, type) VALUES (%(event)s, %(batch)s, %(type)s) RETURNING batch_id
)
SELECT pg_notify('batchline', 'event ' || batch_id) IS NULL AS notified FROM event
