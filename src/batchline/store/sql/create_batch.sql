-- create_batch: one row for the batch and one for each lane of its file, whatever the number of lines.
--
-- The lanes' routing key is the upstream that the batch names, or else each lane's model.
-- If a worker stands by that serves one of the lanes, the first lines of that lane are claimed for it here and now:
-- the batch and its first claim are one commit, and a notification of the worker's own brings the lines along. Only
-- as many as that can hold; whatever else there is, workers claim as usual.
--
-- Returns no row when no batch can run over the file, or it is not there. Locks: the file's row, so that it
-- cannot be deleted meanwhile; a stand-by, which is passed over if somebody else is using it.
WITH
file AS (
    SELECT id, no, line_count
    FROM files
    WHERE id = %(file)s
      AND tenant = %(tenant)s
      AND purpose = 'batch'
      AND errors IS NULL
      AND deleted_at IS NULL
      AND (expires_at IS NULL OR expires_at > now())
    FOR KEY SHARE
),
part AS (
    SELECT
        part.file_no,
        part.lane_no,
        part.model,
        part.url,
        part.total,
        coalesce(%(settings)s::jsonb ->> 'upstream', part.model) AS key
    FROM file
    JOIN file_lanes AS part ON part.file_no = file.no
),
batch AS (
    INSERT INTO batches (
        id, tenant, file_id, endpoint, completion_window, settings, metadata, resume_key, total,
        in_progress_at, expires_at, model, output_expires_after, planned_output_id
    )
    SELECT
        %(batch)s,
        %(tenant)s,
        file.id,
        %(endpoint)s,
        %(window)s,
        %(settings)s,
        %(metadata)s,
        %(resume_key)s,
        file.line_count,
        now(),
        now() + make_interval(secs => %(window_seconds)s),
        (SELECT min(part.model) FROM part HAVING min(part.model) = max(part.model)),
        %(output_expires_after)s,
        %(planned_output)s
    FROM file
    RETURNING *
),
-- Only to who holds nothing yet: it may be full by now. Its word holds no longer than its lease. And it holds the
-- lock as long as its listening connection lives: to one that is dead, nothing is handed.
standby AS (
    SELECT s.id, s.worker_id, s.post, s.room, s.said, s.channel, served.*
    FROM standbys AS s
    CROSS JOIN LATERAL (
        SELECT part.*
        FROM part
        WHERE (s.keys IS NULL OR part.key = ANY (s.keys)) AND part.key NOT LIKE ALL (s.besides)
        ORDER BY part.lane_no
        LIMIT 1
    ) AS served
    WHERE s.until > now()
      AND EXISTS (SELECT FROM workers AS w WHERE w.id = s.worker_id AND w.lease_until > now())
      AND NOT EXISTS (SELECT FROM spans AS h WHERE h.worker_id = s.worker_id)
      AND NOT pg_try_advisory_xact_lock_shared(hashtextextended(s.channel, 0))
    LIMIT 1
    FOR UPDATE OF s SKIP LOCKED
),
-- Notifications are shorter than 8000 bytes. What comes before the details takes up to 125 of them.
handed AS (
    SELECT *
    FROM (
        SELECT
            s.id,
            s.worker_id,
            s.channel,
            s.lane_no,
            first.take,
            json_build_object(
                'post', s.post,
                'said', s.said,
                'size', first.take,
                'url', s.url,
                'model', s.model,
                'key', s.key,
                'seconds_left', %(window_seconds)s::float8,
                'settings', %(settings)s::jsonb,
                'lines', first.lines
            )::text AS details
        FROM standby AS s
        CROSS JOIN LATERAL (
            SELECT
                count(*)::integer AS take,
                max(l.ordinal) AS last,
                json_agg(json_build_array(l.ordinal, l.line_no, l.custom_id, l.body) ORDER BY l.ordinal) AS lines
            FROM (
                SELECT
                    l.ordinal,
                    l.line_no,
                    l.custom_id,
                    l.body,
                    sum(octet_length(l.custom_id) + octet_length(l.body)) OVER (ORDER BY l.ordinal) AS bytes
                FROM lines AS l
                WHERE l.file_no = s.file_no AND l.lane_no = s.lane_no AND l.ordinal < s.room
            ) AS l
            WHERE l.bytes < 6000
        ) AS first
        WHERE first.take = first.last + 1
    ) AS offer
    WHERE octet_length(details) < 7800
),
lane AS (
    INSERT INTO lanes (batch_id, tenant, key, deadline, file_no, lane_no, model, url, total, next, drained)
    SELECT
        batch.id,
        batch.tenant,
        part.key,
        batch.expires_at,
        part.file_no,
        part.lane_no,
        part.model,
        part.url,
        part.total,
        coalesce(handed.take, 0),
        coalesce(handed.take, 0) = part.total
    FROM batch
    CROSS JOIN part
    LEFT JOIN handed USING (lane_no)
    RETURNING id, batch_id, lane_no
),
span AS (
    INSERT INTO spans (lane_id, batch_id, outstanding, worker_id)
    SELECT lane.id, lane.batch_id, int4multirange(int4range(0, handed.take)), handed.worker_id
    FROM handed
    JOIN lane USING (lane_no)
    RETURNING id, lane_id
),
used AS (
    DELETE FROM standbys WHERE id = ANY (ARRAY (SELECT id FROM handed))
)
SELECT
    batch.*,
    (
        SELECT
            pg_notify(
                handed.channel,
                format('handed %%s %%s %%s %%s %%s', batch.id, handed.worker_id, span.id, span.lane_id, handed.details)
            ) IS NULL
        FROM handed
        CROSS JOIN span
    ) AS handed,
    pg_notify('batchline', 'open ' || batch.id) IS NULL AS told
FROM batch
