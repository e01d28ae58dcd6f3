-- last_invalid_answer: the error line of the last answer to an item that did not meet the rules of its batch. No row if there is
-- none. A line of more than `max_size` characters is cut, and then it is not JSON. Locks: none; reads retry_attempts_item.
SELECT left(a.message, %(max_size)s::integer) AS line
FROM batchline.retry_attempts AS a
WHERE a.lane_id = %(lane)s AND a.ordinal = %(ordinal)s AND a.error_code = %(code)s
ORDER BY a.attempt DESC
LIMIT 1
