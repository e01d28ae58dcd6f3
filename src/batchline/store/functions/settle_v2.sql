-- settle: take the verdicts of one worker on lines that it was given.
--
-- Verdicts come in groups: one element in each of the first arrays is for all verdicts of one kind on one span, with their
-- ordinals as a multirange and their tokens and costs summed. A group counts whole or not at all (record_verdicts). A group that is
-- refused is returned by its number: the caller sends its verdicts again, each as a separate group, and then only the late
-- ones are dropped. No two groups of one call name the same line.
--
-- Locks: spans in id order, then the batch rows in id order, as late as possible: results are inserted before, so settles
-- of one batch wait for no more than each other's commit. Then the lanes of all batches that are closed here, in id order. A
-- conclusion locks lanes, too, so only a settle of a single batch concludes.
--
-- Returns each batch touched: `finished` if it is frozen now, `paused` if this settle has paused it because of its failures,
-- `closing` if it is being cancelled or has expired, `step_ended` if the caller should begin its next step. A closing
-- batch is concluded here unless a group was refused, or other batches are settled, too; then the caller does it, after it has
-- sent that group again. `emitted` if lines were added to later stages. And a row with nothing but `refused` for each group that
-- did not count.
--
-- What a completed item emits is added in this statement, if its verdict counts, and after the batch row was locked. So nothing
-- is emitted twice, and a batch is not finished while an emitted line is not.
CREATE FUNCTION batchline.settle_v2(
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
    -- One element per cause
    cause_keys text[], cause_codes text[], cause_messages text[],
    -- One element per group: of lines that are put back, the upstream that may have worked on them, or NULL
    senders text[],
    -- One element per line that a completed item has emitted to a stage of its batch (emit)
    emitted_groups integer[] DEFAULT '{}', emitted_urls text[] DEFAULT '{}', emitted_ids text[] DEFAULT '{}',
    emitted_bodies text[] DEFAULT '{}'
) RETURNS TABLE (
    batch_id uuid, ended integer, finished boolean, closing boolean, paused boolean, step_ended boolean, emitted boolean,
    refused bigint
)
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_column
DECLARE
    tally record;
    counted record;
    -- What the accepted items of one batch emit
    more_lines integer := 0;
    more_bytes bigint := 0;
    urls text[];
    ids text[];
    bodies text[];
    accepted_groups bigint[] := '{}';
    closed uuid[] := '{}';
BEGIN
    PERFORM batchline.require_read_committed_v1();
    FOR tally IN
        SELECT *
        FROM batchline.record_verdicts_v2(
            worker,
            spans, kinds, status_codes, delays, ordinals,
            sizes, input_tokens, cached_tokens, output_tokens, reasoning_tokens, costs,
            ended_groups, ended_line_nos, ended_ordinals, ended_input_tokens, ended_output_tokens, outputs,
            ended_upstream, ended_settling,
            retried_groups, retried_ordinals, error_codes, messages, retried_upstream, retried_settling, causes,
            lanes, batches, senders
        )
        ORDER BY batch_id
    LOOP
        accepted_groups := accepted_groups || tally.groups;
        IF tally.caused IS NOT NULL THEN
            PERFORM batchline.count_causes_v1(
                tally.batch_id, tally.caused, kinds, sizes, ordinals, lanes, causes,
                cause_keys, cause_codes, cause_messages
            );
        END IF;
        IF cardinality(emitted_groups) > 0 THEN
            SELECT
                array_agg(e.url ORDER BY e.nth), array_agg(e.custom_id ORDER BY e.nth), array_agg(e.body ORDER BY e.nth),
                count(*)::integer, coalesce(sum(octet_length(e.body)), 0)::bigint
            INTO urls, ids, bodies, more_lines, more_bytes
            FROM unnest(emitted_groups, emitted_urls, emitted_ids, emitted_bodies) WITH ORDINALITY
                AS e (no, url, custom_id, body, nth)
            WHERE e.no = ANY (tally.groups);
        END IF;
        SELECT * INTO counted
        FROM batchline.add_counts_v1(
            tally.batch_id, tally.completed, tally.failed, tally.more_input_tokens, tally.more_cached_tokens,
            tally.more_output_tokens, tally.more_reasoning_tokens, tally.more_cost,
            more_lines, more_bytes
        );
        -- The batch was deleted meanwhile. Maintenance deletes what is left of it, these results too.
        CONTINUE WHEN counted.finished IS NULL;
        emitted := more_lines > 0;
        IF emitted THEN
            PERFORM batchline.emit_v1(tally.batch_id, counted.total + 1, urls, ids, bodies);
        END IF;
        batch_id := tally.batch_id;
        ended := tally.completed + tally.failed;
        closing := counted.closing;
        finished := counted.finished;
        paused := tally.failed > 0 AND NOT finished AND NOT closing AND batchline.pause_after_failures_v1(
            tally.batch_id,
            ARRAY (
                SELECT DISTINCT cause_codes[array_position(cause_keys, causes[no])]
                FROM unnest(tally.caused) AS no
                WHERE kinds[no] = 1
            )
        );
        step_ended := counted.step_ended AND ended > 0 AND NOT finished AND NOT closing;
        IF (step_ended AND batchline.end_step_v1(tally.batch_id)) OR paused OR counted.left_out THEN
            closed := closed || batch_id;
        END IF;
        IF counted.governed AND ended > 0 THEN
            PERFORM batchline.audit_ended_v1(tally.batch_id, ARRAY (
                SELECT line_no
                FROM unnest(ended_groups, ended_line_nos) AS outcome (no, line_no)
                WHERE no = ANY (tally.groups)
            ));
        END IF;
        IF closing AND NOT finished AND tally.all_accepted AND tally.alone THEN
            finished := batchline.conclude_now_v2(tally.batch_id);
        END IF;
        RETURN NEXT;
    END LOOP;
    IF cardinality(closed) > 0 THEN
        PERFORM FROM batchline.lanes AS n WHERE n.batch_id = ANY (closed) ORDER BY n.id FOR NO KEY UPDATE;
        UPDATE batchline.lanes AS n SET open = false WHERE n.batch_id = ANY (closed) AND n.open;
    END IF;

    RETURN QUERY
    SELECT NULL::uuid, NULL::integer, NULL::boolean, NULL::boolean, NULL::boolean, NULL::boolean, NULL::boolean, nth::bigint
    FROM generate_series(1, cardinality(spans)) AS nth
    WHERE nth <> ALL (accepted_groups);
END
$$;
