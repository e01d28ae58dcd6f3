-- forget_hooks: forget hooks that no worker has had for `seconds`, and abandon deliveries as old as that to hooks that no
-- worker has. Returns the number of abandoned deliveries. Locks: these rows.
--
-- The list of hooks is short. Open deliveries are found by the index of all deliveries by age, which ends after a month.
WITH
forgotten AS (
    DELETE FROM batchline.hooks
    WHERE seen_at < now() - make_interval(secs => %(seconds)s)
    RETURNING name
),
abandoned AS (
    UPDATE batchline.hook_deliveries AS d
    SET failed_at = now(), running_until = NULL, last_error = coalesce(d.last_error, 'no worker has this hook')
    WHERE d.created_at < now() - make_interval(secs => %(seconds)s)
      AND d.delivered_at IS NULL
      AND d.failed_at IS NULL
      AND d.available_at <= now()
      AND NOT EXISTS (
          SELECT FROM batchline.hooks AS h
          WHERE h.name = d.hook AND h.seen_at >= now() - make_interval(secs => %(seconds)s)
      )
    RETURNING 1
)
SELECT count(*) FROM abandoned
