-- measure_limits, 3 of 3: count what is pending, globally and for one user, and read the user's limits. The counts are
-- exact while the locks of steps 1 and 2 are held: other transactions can only lower them. Also used without locks, for
-- display.
--
-- Uses the clock, not the start of the transaction: an exemption that ended while we waited for the locks no longer
-- counts. Pending batches are counted in `batches`, by a partial index with few rows.
SELECT
    (
        SELECT count(*)
        FROM batchline.batches
        WHERE submitted_by IS NOT NULL AND finalizing_at IS NULL AND ended_at IS NULL
    )::integer AS all_parents,
    mine.parents,
    mine.children,
    (
        SELECT extract(epoch FROM clock_timestamp() - max(created_at))
        FROM batchline.operation_batches
        WHERE tenant = %(tenant)s AND user_id = %(user)s
    )::float8 AS since_last,
    o.max_pending_parents,
    o.max_pending_children,
    o.cooldown_seconds,
    EXISTS (
        SELECT
        FROM batchline.limit_exemptions
        WHERE tenant = %(tenant)s AND user_id = %(user)s AND expires_at > clock_timestamp()
    ) AS exempt
FROM (
    SELECT count(*)::integer AS parents, coalesce(sum(total - completed - failed), 0)::integer AS children
    FROM batchline.current_batches
    WHERE tenant = %(tenant)s
      AND submitted_by = %(user)s
      AND finalizing_at IS NULL
      AND ended_at IS NULL
) AS mine
LEFT JOIN batchline.limit_overrides AS o ON o.tenant = %(tenant)s AND o.user_id = %(user)s
