-- unknown_spans: spans that a worker holds without knowing it: the answer to its claim was lost. No locks.
SELECT id FROM batchline.spans WHERE worker_id = %(worker)s AND NOT (id = ANY (%(known)s::bigint[]))
