-- remove_adopted: take the adopted batches and files away again, when the old tables have everything. What was copied
-- stays under its reserved numbers, so that a second cutover is short. Files that a batch of Batchline's own uses stay.
-- Output files are deleted as by a user.
--
-- A batch that a user has deleted has rows left, too, until maintenance has deleted them. keep_adopted_lanes runs next.
--
-- The caller holds locks on spans, batches and lanes that exclude claims and settles. Lanes go with their batches.
WITH
batch AS (
    DELETE FROM batchline.batches AS b
    USING batchline.adopted_batches AS a
    WHERE b.id = a.batch_id AND a.reason IS NULL
    RETURNING b.id, b.settings, b.output_file_id, b.error_file_id
),
lane AS (
    SELECT n.lane_id, n.batch_id
    FROM batchline.adopted_lanes AS n
    JOIN batchline.adopted_batches AS a ON a.batch_id = n.batch_id
    WHERE a.reason IS NULL
),
span AS (
    DELETE FROM batchline.spans AS s
    USING lane
    WHERE s.batch_id = lane.batch_id AND s.lane_id = lane.lane_id
    RETURNING s.upstream, s.task_id, s.batch_id, s.lane_id
),
-- To be cancelled at their providers, without the batch that says where and how.
task AS (
    INSERT INTO batchline.abandoned_tasks (upstream, task_id, batch_id, lane_id, url, model, settings)
    SELECT span.upstream, span.task_id, span.batch_id, span.lane_id, n.url, n.model, batch.settings
    FROM span
    JOIN batch ON batch.id = span.batch_id
    JOIN batchline.lanes AS n ON n.id = span.lane_id
    WHERE span.task_id IS NOT NULL
    ON CONFLICT DO NOTHING
),
cursor_row AS (
    DELETE FROM batchline.cursors AS c USING lane WHERE c.lane_id = lane.lane_id
),
counter AS (
    DELETE FROM batchline.counters AS c USING lane WHERE c.batch_id = lane.batch_id
),
cause AS (
    DELETE FROM batchline.cause_counts AS c USING lane WHERE c.batch_id = lane.batch_id
),
attempt AS (
    DELETE FROM batchline.retry_attempts AS r USING lane WHERE r.lane_id = lane.lane_id
),
output AS (
    UPDATE batchline.files AS f
    SET deleted_at = now()
    FROM batch
    WHERE f.id IN (batch.output_file_id, batch.error_file_id) AND f.deleted_at IS NULL
),
file AS (
    DELETE FROM batchline.files AS f
    USING batchline.adopted_files AS a
    WHERE f.id = a.file_id
      AND NOT EXISTS (
          SELECT
          FROM batchline.batches AS other
          WHERE other.file_id = f.id
            AND NOT EXISTS (
                SELECT FROM batchline.adopted_batches AS known WHERE known.batch_id = other.id AND known.reason IS NULL
            )
      )
    RETURNING f.no
),
part AS (
    DELETE FROM batchline.file_lanes AS p USING file WHERE p.file_no = file.no
),
hash AS (
    DELETE FROM batchline.line_hashes AS h USING file WHERE h.file_no = file.no
)
SELECT count(*)::integer FROM batch
