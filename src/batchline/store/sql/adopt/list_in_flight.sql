-- list_in_flight: requests that may have been sent by a program that stopped before it stored the answer. Locks: none.
SELECT batch_id, line_no, found_by, custom_id, state, claimed_at
FROM batchline.adopted_in_flight
WHERE %(found_by)s::text IS NULL OR found_by = %(found_by)s::text
ORDER BY found_by, batch_id, line_no
