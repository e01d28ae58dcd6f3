-- record_verdicts: the part of a settle that changes spans: insert results, shrink spans, put retries back.
--
-- See settle for the parameters. A group of verdicts counts only while all its ordinals are still in `outstanding`, and
-- then counts whole: so the first verdict wins and nothing is counted twice, at the cost of one check per group instead
-- of one per line. An outcome (completed, failed) is taken from the first worker that brings it, also from one whose lease
-- has expired: it is a true answer. A retry or a deferral is taken only from the worker that holds the span: otherwise it
-- would take the line away from its new holder. What a span knows of an interrupted submission, of lost workers and of
-- crashes of the upstream stays with a deferral, and a retry drops it. A result keeps the provider's task.
--
-- A span must also be of the lane and the batch that the verdict is for. It is, unless the database has lost what it had
-- committed: it was restored from a backup, or a standby that lagged took over. Then the numbers of spans and lanes are given
-- out again, and a worker that lived through it brings answers of spans that are others now. The ids of batches are unique.
--
-- Returns one row per batch: the groups that counted, those of them that have a cause, whether all groups of the call did,
-- whether there is no other batch, and what they add to its counters. Locks: spans in id order.
CREATE FUNCTION batchline.record_verdicts_v2(
    worker uuid,
    -- One element per group. kind: 0 completed, 1 failed, 2 retry, 3 deferred (never sent, so not an attempt), 4 as 3, but
    -- a provider may have accepted it; 5 as 3, but the upstream crashed while it had the lines
    spans bigint[], kinds smallint[], status_codes smallint[], delays double precision[], ordinals int4multirange[],
    sizes integer[], input_tokens bigint[], cached_tokens bigint[], output_tokens bigint[], reasoning_tokens bigint[],
    costs bigint[],
    -- One element per outcome
    ended_groups integer[], ended_line_nos integer[], ended_ordinals integer[], ended_input_tokens integer[],
    ended_output_tokens integer[], outputs text[], ended_upstream real[], ended_settling real[],
    -- One element per retry
    retried_groups integer[], retried_ordinals integer[], error_codes text[], messages text[], retried_upstream real[],
    retried_settling real[],
    -- One element per group, NULL unless it is of failures or retries; empty if there are none
    causes text[],
    -- One element per group
    lanes bigint[], batches uuid[],
    -- One element per group: of lines that are put back, the upstream that may have worked on them, or NULL
    senders text[]
) RETURNS TABLE (
    batch_id uuid, groups bigint[], caused bigint[], all_accepted boolean, alone boolean, completed integer, failed integer, more_input_tokens bigint,
    more_cached_tokens bigint, more_output_tokens bigint, more_reasoning_tokens bigint,
    more_cost bigint
)
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_column
BEGIN
RETURN QUERY
WITH
verdicts AS (
    SELECT *
    FROM unnest(
        spans, kinds, status_codes, delays, ordinals, sizes,
        input_tokens, cached_tokens, output_tokens, reasoning_tokens, costs, causes, lanes, batches, senders
    ) WITH ORDINALITY AS v (
        span_id, kind, status_code, delay, ordinals, size,
        input_tokens, cached_tokens, output_tokens, reasoning_tokens, cost, cause, of_lane, of_batch, sender, no
    )
),
span AS (
    SELECT
        s.id, s.lane_id, s.batch_id, s.outstanding, s.attempt, s.attempts_before, s.worker_id, s.task_id, s.submission,
        s.claimed_at, s.losses, s.crashes
    FROM batchline.spans AS s
    WHERE s.id = ANY (spans)
    ORDER BY s.id
    FOR UPDATE
),
accepted AS (
    SELECT
        v.*,
        s.lane_id,
        s.batch_id,
        s.attempt,
        s.attempts_before,
        s.task_id,
        extract(epoch FROM now() - s.claimed_at)::real AS held_seconds,
        CASE v.kind WHEN 4 THEN 'unknown' WHEN 3 THEN s.submission WHEN 5 THEN s.submission END AS submission,
        CASE WHEN v.kind > 2 THEN s.losses ELSE 0 END AS losses,
        CASE v.kind WHEN 2 THEN 0 WHEN 5 THEN least(s.crashes + 1, 1000) ELSE s.crashes END AS crashes
    FROM verdicts AS v
    JOIN span AS s ON s.id = v.span_id
    WHERE s.outstanding @> v.ordinals AND (v.kind < 2 OR s.worker_id = worker)
        AND s.lane_id = v.of_lane AND s.batch_id = v.of_batch
),
outcome AS (
    INSERT INTO batchline.results
        (
            lane_id, line_no, ordinal, outcome, status_code, attempt, input_tokens, output_tokens, output, task_id,
            cause, held_seconds, upstream_seconds, settling_seconds
        )
    SELECT
        a.lane_id,
        i.line_no,
        i.ordinal,
        CASE a.kind WHEN 0 THEN 'completed'::batchline.outcome ELSE 'failed'::batchline.outcome END,
        a.status_code,
        a.attempt,
        i.input_tokens,
        i.output_tokens,
        i.output,
        a.task_id,
        a.cause,
        a.held_seconds,
        i.upstream_seconds,
        i.settling_seconds
    FROM unnest(
        ended_groups, ended_line_nos, ended_ordinals, ended_input_tokens, ended_output_tokens, outputs,
        ended_upstream, ended_settling
    ) AS i (no, line_no, ordinal, input_tokens, output_tokens, output, upstream_seconds, settling_seconds)
    JOIN accepted AS a ON a.no = i.no
),
-- What is left is computed from the locked version of the span. A condition on the row that UPDATE finds for itself
-- would be tried on the snapshot's version first, and a span that shrank meanwhile would be missed.
rest AS (
    SELECT s.id, s.outstanding - a.ordinals AS outstanding
    FROM span AS s
    JOIN (SELECT span_id, range_agg(ordinals) AS ordinals FROM accepted GROUP BY span_id) AS a
        ON a.span_id = s.id
),
shrunk AS (
    UPDATE batchline.spans AS s
    SET outstanding = rest.outstanding
    FROM rest
    WHERE s.id = rest.id AND NOT isempty(rest.outstanding)
),
emptied AS (
    DELETE FROM batchline.spans AS s
    USING rest
    WHERE s.id = rest.id AND isempty(rest.outstanding)
),
again AS (
    INSERT INTO batchline.spans
        (lane_id, batch_id, outstanding, attempt, attempts_before, available_at, submission, losses, sent_to, crashes)
    SELECT
        lane_id,
        batch_id,
        range_agg(ordinals),
        attempt + CASE kind WHEN 2 THEN 1 ELSE 0 END,
        attempts_before,
        now() + make_interval(secs => delay),
        submission,
        losses,
        sender,
        crashes
    FROM accepted
    WHERE kind >= 2
    GROUP BY lane_id, batch_id, attempt, attempts_before, kind, delay, submission, losses, sender, crashes
),
attempted AS (
    INSERT INTO batchline.retry_attempts (
        batch_id, lane_id, ordinal, attempt, error_code, message, not_before,
        cause, held_seconds, upstream_seconds, settling_seconds
    )
    SELECT
        a.batch_id, a.lane_id, i.ordinal, a.attempt, i.error_code, i.message,
        now() + make_interval(secs => a.delay),
        a.cause, a.held_seconds, i.upstream_seconds, i.settling_seconds
    FROM unnest(retried_groups, retried_ordinals, error_codes, messages, retried_upstream, retried_settling)
        AS i (no, ordinal, error_code, message, upstream_seconds, settling_seconds)
    JOIN accepted AS a ON a.no = i.no
)
SELECT
    batch_id,
    array_agg(no),
    array_agg(no) FILTER (WHERE cause IS NOT NULL),
    sum(count(*)) OVER () = cardinality(spans),
    count(*) OVER () = 1,
    coalesce(sum(size) FILTER (WHERE kind = 0), 0)::integer,
    coalesce(sum(size) FILTER (WHERE kind = 1), 0)::integer,
    sum(input_tokens)::bigint,
    sum(cached_tokens)::bigint,
    sum(output_tokens)::bigint,
    sum(reasoning_tokens)::bigint,
    sum(cost)::bigint
FROM accepted
GROUP BY batch_id;
END
$$;
