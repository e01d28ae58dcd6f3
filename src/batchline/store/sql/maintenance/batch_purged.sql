-- batch_purged: mark a batch as purged, unless results or attempts are left because another worker still deletes them. The
-- causes of its failures quote its upstream, so they are deleted, too, and so are its duplicates, which no retry needs any more.
WITH
purged AS (
    UPDATE batchline.batches AS b
    SET purged_at = now()
    WHERE b.id = %(batch)s
      AND b.purging_at IS NOT NULL
      AND NOT EXISTS (
          SELECT
          FROM batchline.lanes AS n
          WHERE n.batch_id = b.id
            AND (
                EXISTS (SELECT FROM batchline.results AS r WHERE r.lane_id = n.id)
                OR EXISTS (SELECT FROM batchline.retry_attempts AS a WHERE a.lane_id = n.id)
            )
      )
    RETURNING b.id
),
known AS (
    DELETE FROM batchline.duplicates AS d USING purged WHERE d.batch_id = purged.id
)
DELETE FROM batchline.failure_causes AS f
USING purged
WHERE f.batch_id = purged.id
