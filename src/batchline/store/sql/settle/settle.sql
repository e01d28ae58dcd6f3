-- settle: take the verdicts of one worker on items that it was handed.
--
-- Verdicts come in groups: one row in the first set of arrays stands for all verdicts of one kind on one
-- span, with their ordinals as a multirange and their tokens summed. A group counts only while all its
-- ordinals are still in `outstanding`, and then counts whole; so the first verdict wins and nothing is
-- counted twice, at the price of one look a group instead of one an item. A group that is refused comes
-- back by its number: the caller gives its verdicts again, each as a group of its own, and then a late
-- one is dropped and its neighbours are not. No two groups of one call name the same item.
--
-- An outcome (completed, failed) is taken from whoever brings it first, also from a worker that was given
-- up: it is a true answer. A retry or a deferral only from the worker that holds the span, or it would pull
-- the item away from under its new holder.
--
-- Locks: spans in id order, then the batch rows in id order, as late as possible: results are inserted
-- before, so settles of one batch queue for no more than each other's commit. Safe because everything is
-- decided from locked rows: under READ COMMITTED they are seen in their newest version, all others as of
-- the start of the statement. Whether a batch is over follows from its own locked row alone.
--
-- Returns each batch touched: `finished` if these verdicts ended it, `closing` if it is being cancelled
-- or has expired, in which case the caller must run conclude after this has committed; and a row with
-- nothing but `refused` for each group that did not count.
WITH
-- kind: 0 completed, 1 failed, 2 retry, 3 deferred (it never left, so it is not an attempt)
verdicts AS (
    SELECT *
    FROM unnest(
        %(spans)b::bigint[],
        %(kinds)b::smallint[],
        %(status_codes)b::smallint[],
        %(delays)b::float8[],
        %(ordinals)b::int4multirange[],
        %(sizes)b::integer[],
        %(input_tokens)b::bigint[],
        %(cached_tokens)b::bigint[],
        %(output_tokens)b::bigint[],
        %(reasoning_tokens)b::bigint[]
    ) WITH ORDINALITY AS v (
        span_id, kind, status_code, delay, ordinals, size, input_tokens, cached_tokens, output_tokens,
        reasoning_tokens, no
    )
),
span AS (
    SELECT s.id, s.lane_id, s.batch_id, s.outstanding, s.attempt, s.worker_id
    FROM batchline.spans AS s
    WHERE s.id = ANY (%(spans)b::bigint[])
    ORDER BY s.id
    FOR UPDATE
),
accepted AS (
    SELECT v.*, s.lane_id, s.batch_id, s.attempt
    FROM verdicts AS v
    JOIN span AS s ON s.id = v.span_id
    WHERE s.outstanding @> v.ordinals AND (v.kind < 2 OR s.worker_id = %(worker)s)
),
ended AS (
    INSERT INTO batchline.results
        (lane_id, line_no, ordinal, outcome, status_code, attempt, input_tokens, output_tokens, output)
    SELECT
        a.lane_id,
        i.line_no,
        i.ordinal,
        CASE a.kind WHEN 0 THEN 'completed'::batchline.outcome ELSE 'failed'::batchline.outcome END,
        a.status_code,
        a.attempt,
        i.input_tokens,
        i.output_tokens,
        i.output
    FROM unnest(
        %(ended_groups)b::integer[],
        %(ended_line_nos)b::integer[],
        %(ended_ordinals)b::integer[],
        %(ended_input_tokens)b::integer[],
        %(ended_output_tokens)b::integer[],
        %(outputs)b::text[]
    ) AS i (no, line_no, ordinal, input_tokens, output_tokens, output)
    JOIN accepted AS a ON a.no = i.no
    RETURNING 1
),
-- The ends of children of governed batches are in the audit log from the same moment on. Whose a batch is never
-- changes, so it is read without a lock; of ordinary batches nothing more is read than that.
governed AS (
    SELECT b.id, b.tenant
    FROM batchline.batches AS b
    WHERE b.id IN (SELECT batch_id FROM accepted WHERE kind < 2) AND b.submitted_by IS NOT NULL
),
audited AS (
    INSERT INTO batchline.audit_log (tenant, actor, action, batch_id, sequence_no, detail)
    SELECT
        g.tenant,
        'system',
        'child.ended',
        g.id,
        i.line_no,
        jsonb_build_object(
            'status', CASE a.kind WHEN 0 THEN 'SUCCEEDED' ELSE 'FAILED' END,
            'attempt', a.attempt,
            'status_code', a.status_code
        )
    FROM governed AS g
    JOIN accepted AS a ON a.batch_id = g.id AND a.kind < 2
    JOIN unnest(%(ended_groups)b::integer[], %(ended_line_nos)b::integer[]) AS i (no, line_no) ON i.no = a.no
    ORDER BY i.line_no
    RETURNING 1
),
-- What is left is computed from the locked version of the span. A condition on the row that UPDATE finds
-- for itself would be tried on the snapshot's version first, and a span that shrank meanwhile be missed.
rest AS (
    SELECT s.id, s.outstanding - a.ordinals AS outstanding
    FROM span AS s
    JOIN (SELECT span_id, range_agg(ordinals) AS ordinals FROM accepted GROUP BY span_id) AS a ON a.span_id = s.id
),
shrunk AS (
    UPDATE batchline.spans AS s
    SET outstanding = rest.outstanding
    FROM rest
    WHERE s.id = rest.id AND NOT isempty(rest.outstanding)
    RETURNING 1
),
emptied AS (
    DELETE FROM batchline.spans AS s
    USING rest
    WHERE s.id = rest.id AND isempty(rest.outstanding)
    RETURNING 1
),
again AS (
    INSERT INTO batchline.spans (lane_id, batch_id, outstanding, attempt, available_at)
    SELECT
        lane_id,
        batch_id,
        range_agg(ordinals),
        attempt + CASE kind WHEN 2 THEN 1 ELSE 0 END,
        now() + make_interval(secs => delay)
    FROM accepted
    WHERE kind >= 2
    GROUP BY lane_id, batch_id, attempt, kind, delay
    RETURNING 1
),
attempted AS (
    INSERT INTO batchline.retry_attempts (batch_id, lane_id, ordinal, attempt, error_code, message, not_before)
    SELECT
        a.batch_id, a.lane_id, i.ordinal, a.attempt, i.error_code, i.message, now() + make_interval(secs => a.delay)
    FROM unnest(
        %(retried_groups)b::integer[],
        %(retried_ordinals)b::integer[],
        %(error_codes)b::text[],
        %(messages)b::text[]
    ) AS i (no, ordinal, error_code, message)
    JOIN accepted AS a ON a.no = i.no
    RETURNING 1
),
tally AS (
    SELECT
        batch_id,
        coalesce(sum(size) FILTER (WHERE kind = 0), 0) AS completed,
        coalesce(sum(size) FILTER (WHERE kind = 1), 0) AS failed,
        sum(input_tokens) AS input_tokens,
        sum(cached_tokens) AS cached_tokens,
        sum(output_tokens) AS output_tokens,
        sum(reasoning_tokens) AS reasoning_tokens
    FROM accepted
    -- Asking for the counts makes the inserts and updates above run before the batch row is locked.
    WHERE (SELECT count(*) FROM ended)
        + (SELECT count(*) FROM shrunk)
        + (SELECT count(*) FROM emptied)
        + (SELECT count(*) FROM again)
        + (SELECT count(*) FROM audited)
        + (SELECT count(*) FROM attempted) > 0
    GROUP BY batch_id
),
batch AS (
    SELECT b.id
    FROM batchline.batches AS b
    WHERE b.id IN (SELECT batch_id FROM tally)
    ORDER BY b.id
    FOR NO KEY UPDATE
),
counted AS (
    UPDATE batchline.batches AS b
    SET completed = b.completed + t.completed,
        failed = b.failed + t.failed,
        input_tokens = b.input_tokens + t.input_tokens,
        cached_tokens = b.cached_tokens + t.cached_tokens,
        output_tokens = b.output_tokens + t.output_tokens,
        reasoning_tokens = b.reasoning_tokens + t.reasoning_tokens,
        finalizing_at = CASE
            WHEN b.completed + b.failed + t.completed + t.failed = b.total THEN now()
            ELSE b.finalizing_at
        END
    FROM tally AS t
    JOIN batch ON batch.id = t.batch_id
    WHERE b.id = t.batch_id
    RETURNING
        b.id,
        t.completed + t.failed AS ended,
        b.finalizing_at IS NOT NULL AS finished,
        b.cancelling_at IS NOT NULL OR b.expiring_at IS NOT NULL AS closing
)
SELECT id, ended::integer, finished, closing, NULL::bigint AS refused FROM counted
UNION ALL
SELECT NULL, NULL, NULL, NULL, no FROM verdicts WHERE no NOT IN (SELECT no FROM accepted)
