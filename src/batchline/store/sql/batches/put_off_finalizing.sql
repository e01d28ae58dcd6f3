-- put_off_finalizing: record a failed finalization, release the batch and set the time of the next try: 1 s after the first failure, then twice as long each time, up to 300 s. Up to a quarter less, at
-- random, so that batches that failed together are not tried together. Returns the seconds; no row if another worker has
-- taken the batch over.
--
-- Locks: the batch row.
UPDATE batchline.batches AS b
SET finalizer = NULL,
    finalize_failures = b.finalize_failures + 1,
    finalize_error = %(error)s,
    finalize_after = now() + make_interval(
        -- The power is bounded before it is taken: a batch may fail for weeks.
        secs => least(300, power(2, least(b.finalize_failures, 9))) * (1 - 0.25 * random())
    )
WHERE b.id = %(batch)s AND b.finalizer = %(worker)s AND b.ended_at IS NULL
RETURNING extract(epoch FROM b.finalize_after - now())::float8
