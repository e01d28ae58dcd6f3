-- register_schedules: an app has these schedules. A new one, and one whose definition has changed, is due next at `due`;
-- another stays as it is, with the times that nobody has run. Two workers that start at the same time write the same.
-- Locks: these rows, in order of name. While a worker stores the items of one, its row is locked.
INSERT INTO batchline.schedules AS s (tenant, name, definition, due_at, available_at)
SELECT %(tenant)s, mine.name, mine.definition, mine.due, mine.due
FROM unnest(%(names)s::text[], %(definitions)s::text[], %(due)s::timestamptz[]) AS mine (name, definition, due)
ORDER BY mine.name
ON CONFLICT (tenant, name) DO UPDATE
SET definition = excluded.definition,
    due_at = excluded.due_at,
    available_at = excluded.available_at,
    attempts = 0,
    last_error = NULL,
    updated_at = now()
WHERE s.definition <> excluded.definition
