-- known_schedules: the time of the database, and what it knows of these schedules. One row at least. Locks: none.
SELECT now() AS now, s.name, s.definition
FROM (SELECT 1) AS once
LEFT JOIN batchline.schedules AS s ON s.tenant = %(schedule_tenant)s AND s.name = ANY (%(schedule_names)s::text[])
