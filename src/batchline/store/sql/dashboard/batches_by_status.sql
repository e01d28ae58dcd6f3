-- batches_by_status: a page of a tenant's batches with one of `statuses`, newest first, after a position, by filters.
--
-- No more than `chunk` batches are looked at, whatever the filters. If there are so many, the last row is the last of them,
-- with `matches` false: the next page continues there. `viewer`: of governed batches only those of this user; NULL: all.
-- To read backwards, DESC and < are exchanged (store/listing.py). Locks: none.
-- Cost: one range of an index for each status, merged.
WITH
candidate AS MATERIALIZED (
    SELECT each.*
    FROM unnest(%(statuses)s::text[]) AS wanted (status)
    CROSS JOIN LATERAL (
        SELECT b.id, b.created_at, b.file_id, b.model, b.metadata, b.submitted_by, b.created_at AS position,
            wanted.status AS status
        FROM batchline.batches AS b
        WHERE b.tenant = %(tenant)s
          AND batchline.batch_status_v1(
              b.cancelled_at, b.expired_at, b.failed_at, b.completed_at, b.cancelling_at, b.finalizing_at, b.paused_at,
              b.held_at, b.in_progress_at
          ) = wanted.status
          AND (b.created_at, b.id) < (%(after)s::timestamptz, %(after_id)s::uuid)
          AND b.created_at >= %(since)s::timestamptz
          AND b.created_at < %(before)s::timestamptz
        ORDER BY b.created_at DESC, b.id DESC
        LIMIT %(chunk)s
    ) AS each
    ORDER BY each.position DESC, each.id DESC
    LIMIT %(chunk)s
),
found AS (
    SELECT c.position, c.id, row_number() OVER (ORDER BY c.position DESC, c.id DESC) AS nth
    FROM candidate AS c
    WHERE (%(viewer)s::text IS NULL OR c.submitted_by IS NULL OR c.submitted_by = %(viewer)s::text)
      AND (%(kind)s::text IS NULL OR (c.submitted_by IS NULL) = (%(kind)s::text = 'batch'))
      AND (%(statuses)s::text[] IS NULL OR c.status = ANY (%(statuses)s::text[]))
      AND (c.created_at >= %(since)s::timestamptz AND c.created_at < %(before)s::timestamptz)
      AND (
          %(model)s::text IS NULL
          OR c.model = %(model)s::text
          OR c.model IS NULL
          AND EXISTS (SELECT FROM batchline.lanes AS n WHERE n.batch_id = c.id AND n.model = %(model)s::text)
      )
      AND (
          %(words)s::text IS NULL
          OR strpos(lower(c.model), %(words)s::text) > 0
          OR strpos(lower(c.metadata::text), %(words)s::text) > 0
          OR EXISTS (
              SELECT FROM batchline.files AS f
              WHERE f.id = c.file_id AND strpos(lower(f.filename), %(words)s::text) > 0
          )
          OR c.submitted_by IS NOT NULL
          AND EXISTS (
              SELECT FROM batchline.operation_batches AS o
              WHERE o.batch_id = c.id AND strpos(o.operation, %(words)s::text) > 0
          )
      )
    ORDER BY nth
    LIMIT %(limit)s
)
SELECT position::text AS position, id, true AS matches, nth FROM found
UNION ALL
(
    SELECT c.position::text, c.id, false, 0
    FROM candidate AS c
    ORDER BY c.position DESC, c.id DESC
    OFFSET %(chunk)s - 1
    LIMIT 1
)
ORDER BY matches DESC, nth
