-- settle: take the verdicts of one worker on lines that it was given.
--
-- Verdicts come in groups: one element in each of the first arrays is for all verdicts of one kind on one span, with their
-- ordinals as a multirange and their tokens summed. A group counts only while all its ordinals are still in `outstanding`,
-- and then counts whole: so the first verdict wins and nothing is counted twice, at the cost of one check per group instead
-- of one per line. A group that is refused is returned by its number: the caller sends its verdicts again, each as a
-- group of its own, and then only the late ones are dropped. No two groups of one call name the same line.
--
-- An outcome (completed, failed) is taken from the first worker that brings it, also from one whose lease has expired: it is
-- a true answer. A retry or a deferral is taken only from the worker that holds the span: otherwise it would take the line
-- away from its new holder. What a span knows of an interrupted submission stays with a deferral, and a retry drops it. A
-- result keeps the provider's task.
--
-- Locks: spans in id order, then the batch rows in id order, as late as possible: results are inserted before, so settles
-- of one batch wait for no more than each other's commit. The batch row does not change. Its counters are appended to
-- `counters`, and read in a statement that began after the row was locked: so they are what the last settle has committed.
--
-- Returns each batch touched: `finished` if it is frozen now, `closing` if it is being cancelled or has expired. A closing
-- batch is concluded here unless a group was refused; then the caller does it, after it has sent that group again. And a row
-- with nothing but `refused` for each group that did not count.
CREATE FUNCTION batchline.settle_v1(
    worker uuid,
    -- One element per group. kind: 0 completed, 1 failed, 2 retry, 3 deferred (never sent, so not an attempt), 4 as 3, but
    -- a provider may have accepted it
    spans bigint[], kinds smallint[], status_codes smallint[], delays double precision[], ordinals int4multirange[],
    sizes integer[], input_tokens bigint[], cached_tokens bigint[], output_tokens bigint[], reasoning_tokens bigint[],
    -- One element per outcome
    ended_groups integer[], ended_line_nos integer[], ended_ordinals integer[], ended_input_tokens integer[],
    ended_output_tokens integer[], outputs text[],
    -- One element per retry
    retried_groups integer[], retried_ordinals integer[], error_codes text[], messages text[]
) RETURNS TABLE (batch_id uuid, ended integer, finished boolean, closing boolean, refused bigint)
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_column
DECLARE
    tally record;
    before record;
    accepted_groups bigint[] := '{}';
BEGIN
    FOR tally IN
        WITH
        verdicts AS (
            SELECT *
            FROM unnest(
                spans, kinds, status_codes, delays, ordinals, sizes,
                input_tokens, cached_tokens, output_tokens, reasoning_tokens
            ) WITH ORDINALITY AS v (
                span_id, kind, status_code, delay, ordinals, size,
                input_tokens, cached_tokens, output_tokens, reasoning_tokens, no
            )
        ),
        span AS (
            SELECT s.id, s.lane_id, s.batch_id, s.outstanding, s.attempt, s.worker_id, s.task_id, s.submission
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
                s.task_id,
                CASE v.kind WHEN 4 THEN 'unknown' WHEN 3 THEN s.submission END AS submission
            FROM verdicts AS v
            JOIN span AS s ON s.id = v.span_id
            WHERE s.outstanding @> v.ordinals AND (v.kind < 2 OR s.worker_id = worker)
        ),
        outcome AS (
            INSERT INTO batchline.results
                (lane_id, line_no, ordinal, outcome, status_code, attempt, input_tokens, output_tokens, output, task_id)
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
                a.task_id
            FROM unnest(
                ended_groups, ended_line_nos, ended_ordinals, ended_input_tokens, ended_output_tokens, outputs
            ) AS i (no, line_no, ordinal, input_tokens, output_tokens, output)
            JOIN accepted AS a ON a.no = i.no
        ),
        -- The ends of children of governed batches are in the audit log from the same moment on. Whose a batch is never
        -- changes, so it is read without a lock.
        governed AS MATERIALIZED (
            SELECT b.id, b.tenant
            FROM batchline.batches AS b
            WHERE b.id = ANY (ARRAY (SELECT DISTINCT batch_id FROM accepted WHERE kind < 2))
              AND b.submitted_by IS NOT NULL
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
            JOIN unnest(ended_groups, ended_line_nos) AS i (no, line_no) ON i.no = a.no
            ORDER BY i.line_no
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
            INSERT INTO batchline.spans (lane_id, batch_id, outstanding, attempt, available_at, submission)
            SELECT
                lane_id,
                batch_id,
                range_agg(ordinals),
                attempt + CASE kind WHEN 2 THEN 1 ELSE 0 END,
                now() + make_interval(secs => delay),
                submission
            FROM accepted
            WHERE kind >= 2
            GROUP BY lane_id, batch_id, attempt, kind, delay, submission
        ),
        attempted AS (
            INSERT INTO batchline.retry_attempts (batch_id, lane_id, ordinal, attempt, error_code, message, not_before)
            SELECT
                a.batch_id, a.lane_id, i.ordinal, a.attempt, i.error_code, i.message,
                now() + make_interval(secs => a.delay)
            FROM unnest(retried_groups, retried_ordinals, error_codes, messages)
                AS i (no, ordinal, error_code, message)
            JOIN accepted AS a ON a.no = i.no
        )
        SELECT
            batch_id,
            array_agg(no) AS groups,
            sum(count(*)) OVER () = cardinality(spans) AS all_accepted,
            coalesce(sum(size) FILTER (WHERE kind = 0), 0)::integer AS completed,
            coalesce(sum(size) FILTER (WHERE kind = 1), 0)::integer AS failed,
            sum(input_tokens)::bigint AS input_tokens,
            sum(cached_tokens)::bigint AS cached_tokens,
            sum(output_tokens)::bigint AS output_tokens,
            sum(reasoning_tokens)::bigint AS reasoning_tokens
        FROM accepted
        GROUP BY batch_id
        ORDER BY batch_id
    LOOP
        PERFORM FROM batchline.batches AS b WHERE b.id = tally.batch_id FOR NO KEY UPDATE;
        SELECT
            b.total,
            b.cancelling_at IS NOT NULL OR b.expiring_at IS NOT NULL AS closing,
            c.seq,
            coalesce(c.completed, b.completed) AS completed,
            coalesce(c.failed, b.failed) AS failed,
            coalesce(c.input_tokens, b.input_tokens) AS input_tokens,
            coalesce(c.cached_tokens, b.cached_tokens) AS cached_tokens,
            coalesce(c.output_tokens, b.output_tokens) AS output_tokens,
            coalesce(c.reasoning_tokens, b.reasoning_tokens) AS reasoning_tokens
        INTO before
        FROM batchline.batches AS b
        LEFT JOIN LATERAL (
            SELECT * FROM batchline.counters WHERE counters.batch_id = b.id ORDER BY counters.seq DESC LIMIT 1
        ) AS c ON true
        WHERE b.id = tally.batch_id;

        batch_id := tally.batch_id;
        ended := tally.completed + tally.failed;
        closing := before.closing;
        finished := before.completed + before.failed + ended = before.total;
        IF ended > 0 THEN
            INSERT INTO batchline.counters
                (batch_id, completed, failed, input_tokens, cached_tokens, output_tokens, reasoning_tokens)
            VALUES (
                tally.batch_id,
                before.completed + tally.completed,
                before.failed + tally.failed,
                before.input_tokens + tally.input_tokens,
                before.cached_tokens + tally.cached_tokens,
                before.output_tokens + tally.output_tokens,
                before.reasoning_tokens + tally.reasoning_tokens
            );
            DELETE FROM batchline.counters AS c WHERE c.batch_id = tally.batch_id AND c.seq = before.seq;
        END IF;
        IF finished THEN
            PERFORM batchline.freeze_v1(tally.batch_id);
        ELSIF closing AND tally.all_accepted THEN
            finished := batchline.conclude_now_v1(tally.batch_id);
        END IF;
        RETURN NEXT;
        accepted_groups := accepted_groups || tally.groups;
    END LOOP;

    RETURN QUERY
    SELECT NULL::uuid, NULL::integer, NULL::boolean, NULL::boolean, nth::bigint
    FROM generate_series(1, cardinality(spans)) AS nth
    WHERE nth <> ALL (accepted_groups);
END
$$;
