-- strays: what a worker holds without knowing it: a claim whose answer was lost on the way, or lines that were
-- handed to it unheard. No locks.
SELECT id FROM spans WHERE worker_id = %(worker)s AND NOT (id = ANY (%(known)s::bigint[]))
