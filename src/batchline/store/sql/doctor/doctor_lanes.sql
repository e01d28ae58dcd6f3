-- doctor_lanes: check that the lanes of a batch match those of its file and add up, that cursor and `drained` agree,
-- that a lane has at most one cursor, and that lanes are open exactly while items may be claimed.
--
-- Small tables only. A file may be deleted once its batches have ended; then there is nothing to compare with.
WITH
batch AS (
    SELECT
        b.*,
        f.no AS file_no,
        f.line_count,
        b.paused_at IS NOT NULL OR b.held_at IS NOT NULL OR b.cancelling_at IS NOT NULL OR b.expiring_at IS NOT NULL AS shut
    FROM batchline.current_batches AS b
    LEFT JOIN batchline.files AS f ON f.id = b.file_id AND (f.deleted_at IS NULL OR b.ended_at IS NULL)
    WHERE %(batch)s::uuid IS NULL OR b.id = %(batch)s::uuid
),
lane AS (
    SELECT
        n.*,
        b.shut,
        b.finalizing_at IS NULL AND b.ended_at IS NULL AS running,
        b.file_no AS batch_file_no,
        b.step_total IS NOT NULL AS stepped,
        -- Its file gets the lines of fed lanes when it ends.
        n.fed AND b.ended_at IS NULL AS growing
    FROM batchline.current_lanes AS n
    JOIN batch AS b ON b.id = n.batch_id
),
summed AS (
    SELECT batch_id, count(*) AS lanes, sum(total) AS total, bool_or(growing) AS growing FROM lane GROUP BY batch_id
),
finding AS (
    SELECT
        'drained' AS name,
        batch_id,
        id AS lane_id,
        format('drained is %%s, but %%s of %%s items are claimed', drained, next, total) AS message
    FROM lane
    -- The lanes of a batch that runs in steps are drained before their end (doctor_steps).
    WHERE drained <> (next = total) AND NOT (drained AND stepped)
    UNION ALL
    SELECT 'cursors', n.batch_id, n.id, format('the lane has %%s cursors, and is%%s drained', c.rows, CASE WHEN NOT n.drained THEN ' not' END)
    FROM lane AS n
    JOIN (SELECT lane_id, count(*) AS rows FROM batchline.cursors GROUP BY lane_id) AS c ON c.lane_id = n.id
    WHERE c.rows > 1 OR (n.drained AND NOT n.growing)
    UNION ALL
    SELECT 'lane_open', batch_id, id, 'the lane is open, but its batch is paused, held, being cancelled or expired'
    FROM lane
    WHERE open AND shut
    UNION ALL
    SELECT 'lane_open', batch_id, id, 'the lane is closed, but its batch is running: no worker will claim the rest'
    FROM lane
    WHERE NOT open AND NOT shut AND running
    UNION ALL
    SELECT
        'lane_total',
        n.batch_id,
        n.id,
        CASE
            WHEN part.total IS NULL THEN format('its file has no lane %%s', n.lane_no)
            ELSE format('total is %%s, but lane %%s of its file has %%s lines', n.total, n.lane_no, part.total)
        END
    FROM lane AS n
    LEFT JOIN batchline.file_lanes AS part ON part.file_no = n.file_no AND part.lane_no = n.lane_no
    WHERE n.batch_file_no IS NOT NULL
      AND ((n.total IS DISTINCT FROM part.total AND NOT n.growing) OR n.file_no <> n.batch_file_no)
    UNION ALL
    SELECT
        'batch_total',
        b.id,
        NULL,
        format('total is %%s, its lanes add up to %%s', b.total, coalesce(s.total, 0))
            || coalesce(format(', its file has %%s lines', b.line_count), '')
    FROM batch AS b
    LEFT JOIN summed AS s ON s.batch_id = b.id
    WHERE b.total <> coalesce(s.total, 0)
       OR (b.total <> b.line_count AND b.failed_at IS NULL AND s.growing IS NOT TRUE)
    UNION ALL
    SELECT 'batch_file', b.id, NULL, 'the batch has not ended, but its input file is gone'
    FROM batch AS b
    WHERE b.file_no IS NULL AND b.ended_at IS NULL
)
SELECT name, NULL::uuid AS file_id, batch_id, lane_id, message
FROM finding
ORDER BY name, batch_id, lane_id
LIMIT %(max_findings)s
