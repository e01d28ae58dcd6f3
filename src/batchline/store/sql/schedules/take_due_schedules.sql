-- take_due_schedules: lease those of these schedules that are due, for `lease` seconds. After that they are due again: their
-- worker has died. So one worker at a time runs the function of a schedule. A schedule whose definition is another
-- now belongs to newer workers.
--
-- Locks: these rows, skipping locked ones: their workers are storing items.
UPDATE batchline.schedules AS s
SET attempts = s.attempts + 1,
    available_at = now() + make_interval(secs => %(lease)s),
    updated_at = now()
FROM (
    SELECT due.tenant, due.name
    FROM unnest(%(schedule_names)s::text[], %(schedule_definitions)s::text[]) AS mine (name, definition)
    CROSS JOIN LATERAL (
        SELECT o.tenant, o.name
        FROM batchline.schedules AS o
        WHERE o.tenant = %(schedule_tenant)s
          AND o.name = mine.name
          AND o.definition = mine.definition
          AND o.available_at <= now()
        LIMIT 1
        FOR UPDATE SKIP LOCKED
    ) AS due
) AS first
WHERE s.tenant = first.tenant AND s.name = first.name
RETURNING s.tenant, s.name, s.definition, s.due_at, s.attempts, now() AS now
