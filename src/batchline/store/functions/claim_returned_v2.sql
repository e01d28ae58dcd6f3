-- claim_returned: give `worker` up to `max_items` lines of one lane that were claimed before and are free again: those of
-- due spans, the longest waiting first, then those of the `expired` workers.
--
-- A span is split when it is too large; a provider's task is taken whole. Returns each span given, with its items.
-- `tasks_only`: only lines that count as tasks already: a provider has them, or may have them. Lines of an expired worker may
-- have been submitted to a provider, and their span says so then.
--
-- An idle worker lets its lease end, and renews it in the transaction that claims again. So a worker in `expired` may
-- have claimed since the list was read: the lease that was committed with a span decides.
--
-- `losses` counts how often a worker was lost that held the lines. Of a Python operation, a worker holds one line at a time that
-- two workers were lost with: if that one ends its process each time, no other line is taken for the cause (executors/python).
--
-- `sent_to` is the upstream that may have worked on the lines before. It stays; a span without one gets `sender` (claim). Returns it
-- as it was before this claim. `newly_marked`: there was none, so it goes if the lines were not sent (release).
--
-- Nothing is given of a lane that was closed meanwhile: its lines would be sent although the batch is cancelled or paused.
--
-- Locks: spans, skipping those that others have locked, and no more of them than it takes. It waits in one case only: if a
-- span changes between being found and being locked, PostgreSQL locks its newer version without skipping. So the caller
-- holds no lane, for which the holder of that version may wait.
CREATE FUNCTION batchline.claim_returned_v2(
    worker uuid, lane bigint, expired uuid[], max_items integer, sender text, tasks_only boolean DEFAULT false
) RETURNS TABLE (span_id bigint, items integer, sent_to text)
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_column
DECLARE
    python boolean;
    -- The worker holds such a line.
    suspecting boolean;
BEGIN
SELECT starts_with(n.url, 'python:') INTO python FROM batchline.lanes AS n WHERE n.id = lane AND n.open AND n.deadline > now();
IF NOT FOUND THEN
    RETURN;
END IF;
suspecting := python AND EXISTS (SELECT FROM batchline.spans AS s WHERE s.worker_id = worker AND s.losses > 1);
RETURN QUERY
WITH
due AS (
    SELECT s.id, s.outstanding, s.task_id, s.submission, s.losses, s.sent_to, s.available_at AS since
    FROM batchline.spans AS s
    WHERE s.worker_id IS NULL AND s.lane_id = lane AND s.available_at <= now()
      AND (s.task_id IS NOT NULL OR s.submission IS NOT NULL OR NOT tasks_only)
      AND (s.losses < 2 OR NOT suspecting)
    ORDER BY s.available_at, s.id
    LIMIT max_items
    FOR UPDATE SKIP LOCKED
),
abandoned AS (
    SELECT
        s.id,
        s.outstanding,
        s.task_id,
        CASE WHEN s.task_id IS NULL THEN coalesce(s.submission, 'interrupted') END AS submission,
        least(s.losses + 1, 1000)::smallint AS losses,
        s.sent_to,
        'infinity'::timestamptz AS since
    FROM batchline.spans AS s
    WHERE s.worker_id = ANY (expired) AND s.lane_id = lane
      AND (s.losses < 1 OR NOT suspecting)
      -- A chunk of a provider's batch is no item: a relay takes it over (take_chunks).
      AND (s.task_id IS NULL OR NOT starts_with(s.task_id, 'chunk:'))
      AND NOT EXISTS (SELECT FROM batchline.workers AS w WHERE w.id = s.worker_id AND w.lease_until >= now())
    FOR UPDATE OF s SKIP LOCKED
),
-- One row per item, of which the first of each span is kept: so the limit ends the reading, and with it the locking, as
-- soon as there are enough items, and the spans after that are left to others.
found AS (
    SELECT
        id,
        outstanding,
        task_id,
        submission,
        losses,
        sent_to,
        size,
        sum(size) OVER (ORDER BY since, id) - size AS before,
        row_number() OVER (PARTITION BY python AND losses > 1 ORDER BY since, id) AS nth_of_kind
    FROM (
        SELECT span.*, generate_series(1, size) AS nth
        FROM (
            SELECT due.*, batchline.span_size(outstanding) AS size FROM due
            UNION ALL
            SELECT abandoned.*, batchline.span_size(outstanding) FROM abandoned
        ) AS span
        LIMIT max_items
    ) AS item
    WHERE nth = 1
),
wanted AS (
    SELECT
        id,
        outstanding,
        submission,
        losses,
        sent_to,
        size,
        CASE
            WHEN task_id IS NOT NULL THEN size
            WHEN python AND losses > 1 THEN 1
            ELSE least(size, max_items - before)::integer
        END AS take
    FROM found
    WHERE before < max_items AND (nth_of_kind = 1 OR NOT python OR losses < 2)
),
whole AS (
    UPDATE batchline.spans AS s
    SET worker_id = worker, claimed_at = now(), submission = w.submission, losses = w.losses,
        sent_to = coalesce(w.sent_to, sender), newly_marked = w.sent_to IS NULL AND sender IS NOT NULL
    FROM wanted AS w
    WHERE s.id = w.id AND w.take = w.size
    RETURNING s.id, w.size, w.sent_to
),
split AS (
    UPDATE batchline.spans AS s
    SET worker_id = NULL,
        available_at = least(s.available_at, now()),
        submission = w.submission,
        losses = w.losses,
        outstanding = w.outstanding - batchline.span_head(w.outstanding, w.take)
    FROM wanted AS w
    WHERE s.id = w.id AND w.take < w.size
    RETURNING s.lane_id, s.batch_id, s.attempt, s.attempts_before, s.submission, s.losses, s.sent_to, s.crashes,
        batchline.span_head(w.outstanding, w.take) AS head
),
head AS (
    INSERT INTO batchline.spans
        (
            lane_id, batch_id, outstanding, worker_id, attempt, attempts_before, submission, losses, claimed_at,
            sent_to, newly_marked, crashes
        )
    SELECT
        lane_id, batch_id, head, worker, attempt, attempts_before, submission, losses, now(),
        coalesce(sent_to, sender), sent_to IS NULL AND sender IS NOT NULL, crashes
    FROM split
    RETURNING id, outstanding
)
SELECT id, size, sent_to FROM whole
UNION ALL
SELECT head.id, batchline.span_size(head.outstanding), split.sent_to
FROM head
JOIN split ON split.head = head.outstanding;
END
$$;
