-- register_hooks: a worker has these hooks: from now on, an event becomes a delivery for each. Repeated now and then, so
-- that a hook that no worker has any more is forgotten (forget_hooks). Locks: the rows of these hooks, in order of name.
INSERT INTO batchline.hooks (name)
SELECT h.name FROM unnest(%(hooks)s::text[]) AS h (name) ORDER BY h.name
ON CONFLICT (name) DO UPDATE SET seen_at = now()
