-- minimum_read: the next lines. No locks.
SELECT line_number, custom_id, body
FROM request_templates
WHERE line_number >= %(first)s AND line_number < %(end)s
ORDER BY line_number
