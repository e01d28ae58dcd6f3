-- batch_status: the status of a batch from its timestamps, as `Batch.status` has it (model/batch.py), for the index that lists
-- batches by status. The first match wins: ends first, then transitions, then progress.
CREATE FUNCTION batchline.batch_status_v1(
    cancelled_at timestamptz, expired_at timestamptz, failed_at timestamptz, completed_at timestamptz,
    cancelling_at timestamptz, finalizing_at timestamptz, paused_at timestamptz, held_at timestamptz,
    in_progress_at timestamptz
) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$
SELECT CASE
    WHEN cancelled_at IS NOT NULL THEN 'cancelled'
    WHEN expired_at IS NOT NULL THEN 'expired'
    WHEN failed_at IS NOT NULL THEN 'failed'
    WHEN completed_at IS NOT NULL THEN 'completed'
    WHEN cancelling_at IS NOT NULL THEN 'cancelling'
    WHEN finalizing_at IS NOT NULL THEN 'finalizing'
    WHEN coalesce(paused_at, held_at) IS NOT NULL THEN 'paused'
    WHEN in_progress_at IS NOT NULL THEN 'in_progress'
    ELSE 'validating'
END
$$;
