-- suspects_elsewhere: whether another worker holds a line that was in flight at `crashes` crashes of an upstream or more.
--
-- Such lines run alone. A worker holds one of them at a time, and looks here before it sends it: of two workers that hold one
-- each, at least one sees the other, because each has committed its claim before it looks. A worker that is lost holds its line
-- until its lease has expired, and not longer: nobody claims the line of a batch that is paused. All upstreams count: few such
-- lines exist.
--
-- No locks. Reads the spans that are held, by spans_held.
SELECT EXISTS (
    SELECT
    FROM batchline.spans AS s
    CROSS JOIN LATERAL (SELECT * FROM batchline.workers WHERE workers.id = s.worker_id LIMIT 1) AS w
    WHERE s.worker_id IS NOT NULL AND s.worker_id <> %(worker)s AND s.crashes >= %(crashes)s::smallint
      AND w.lease_until >= now()
)
