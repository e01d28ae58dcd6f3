-- create_adopted_batches: the batches of an adoption come to be, with lanes and spans, in the transaction of the cutover,
-- when every finished request has its result and nobody writes.
--
-- A lane's cursor passes every item that has a result, was in flight, or has failed before. Below it, unfinished items go
-- into free spans: those of one attempt and one time together, at most `span_items` ordinals apart, so that no claim has
-- to rewrite a large multirange. Above it they are pending and have no row. So [0, next) is results and spans, disjoint.
--
-- A batch that was cancelled gets no spans, and one without unfinished items needs none: both are frozen at once, and a
-- worker writes their files. Unfinished batches get at least `grace` seconds from now on. Locks: only its own rows.
WITH
batch AS MATERIALIZED (
    SELECT
        b.batch_id,
        b.file_no,
        f.line_count,
        old.*,
        coalesce(old.cancelling_at, old.cancelled_at) AS closed_at,
        b.unfinished = 0 OR coalesce(old.cancelling_at, old.cancelled_at) IS NOT NULL AS frozen,
        -- One without a deadline keeps none.
        CASE
            WHEN old.expires_at IS NOT NULL THEN greatest(old.expires_at, now() + make_interval(secs => %(grace)s))
        END AS deadline,
        CASE WHEN %(by_owner)s::boolean THEN coalesce(nullif(old.owner, ''), %(tenant)s::text) ELSE %(tenant)s::text END
            AS tenant
    FROM batchline.adopted_batches AS b
    JOIN batchline.adopted_files AS f ON f.file_no = b.file_no
    JOIN batchline.source_batches AS old ON old.id = b.batch_id
    WHERE b.reason IS NULL
),
part AS MATERIALIZED (
    SELECT n.lane_id, n.batch_id, n.lane_no, n.cached_tokens, n.reasoning_tokens, p.model, p.url, p.total
    FROM batch
    JOIN batchline.adopted_lanes AS n ON n.batch_id = batch.batch_id
    JOIN batchline.adopted_file_lanes AS p ON p.file_no = batch.file_no AND p.lane_no = n.lane_no
),
done AS MATERIALIZED (
    SELECT
        r.lane_id,
        max(r.ordinal) AS last,
        count(*) FILTER (WHERE r.outcome = 'completed') AS completed,
        count(*) FILTER (WHERE r.outcome = 'failed') AS failed,
        sum(r.input_tokens) AS input_tokens,
        sum(r.output_tokens) AS output_tokens
    FROM batchline.results AS r
    JOIN part ON part.lane_id = r.lane_id
    GROUP BY r.lane_id
),
item AS MATERIALIZED (
    SELECT
        part.lane_id,
        a.ordinal,
        r.retry_attempt + 1 AS attempt,
        CASE WHEN r.state = 'pending' AND r.not_before > now() THEN r.not_before ELSE now() END AS available_at,
        r.state <> 'pending' OR r.retry_attempt > 0 OR r.not_before > now() AS needs_span
    FROM batch
    JOIN batchline.source_requests AS r ON r.batch_id = batch.batch_id
    JOIN batchline.adopted_lines AS a ON a.template_id = r.template_id
    JOIN part ON part.batch_id = batch.batch_id AND part.lane_no = a.lane_no
    WHERE NOT batch.frozen AND r.state IN ('pending', 'claimed', 'processing')
),
reached AS MATERIALIZED (
    SELECT lane_id, max(last) + 1 AS next
    FROM (
        SELECT lane_id, last FROM done
        UNION ALL
        SELECT lane_id, ordinal FROM item WHERE needs_span
    ) AS passed
    GROUP BY lane_id
),
made AS (
    INSERT INTO batchline.batches (
        id, tenant, file_id, endpoint, completion_window, settings, metadata, total, completed, failed,
        input_tokens, cached_tokens, output_tokens, reasoning_tokens, created_at, in_progress_at, expires_at,
        cancelling_at, finalizing_at, model, planned_output_id
    )
    SELECT
        batch.batch_id,
        batch.tenant,
        batch.file_id,
        batch.endpoint,
        coalesce(batch.completion_window, '24h'),
        CASE
            WHEN %(upstream)s::text IS NULL THEN '{}'::jsonb ELSE jsonb_build_object('upstream', %(upstream)s::text)
        END,
        (
            SELECT jsonb_object_agg(pair.key, pair.value)
            FROM jsonb_each_text(CASE jsonb_typeof(batch.metadata) WHEN 'object' THEN batch.metadata END) AS pair
            WHERE pair.value IS NOT NULL
        ),
        batch.line_count,
        coalesce(sum(done.completed), 0),
        coalesce(sum(done.failed), 0),
        coalesce(sum(done.input_tokens), 0),
        coalesce(sum(part.cached_tokens), 0),
        coalesce(sum(done.output_tokens), 0),
        coalesce(sum(part.reasoning_tokens), 0),
        batch.created_at,
        batch.created_at,
        batch.deadline,
        batch.closed_at,
        CASE WHEN batch.frozen THEN now() END,
        CASE WHEN min(part.model) = max(part.model) THEN min(part.model) END,
        batch.output_file_id
    FROM batch
    JOIN part ON part.batch_id = batch.batch_id
    LEFT JOIN done ON done.lane_id = part.lane_id
    GROUP BY
        batch.batch_id, batch.tenant, batch.file_id, batch.endpoint, batch.completion_window, batch.metadata,
        batch.line_count, batch.created_at, batch.deadline, batch.closed_at, batch.frozen, batch.output_file_id
    RETURNING id, finalizing_at
),
lane AS (
    INSERT INTO batchline.lanes (
        id, batch_id, tenant, key, deadline, file_no, lane_no, model, url, next, total, open, drained
    )
    OVERRIDING SYSTEM VALUE
    SELECT
        part.lane_id,
        batch.batch_id,
        batch.tenant,
        coalesce(%(upstream)s::text, part.model),
        -- As in create_batch.
        coalesce(batch.deadline, '9999-12-31 00:00:00+00'),
        batch.file_no,
        part.lane_no,
        part.model,
        part.url,
        coalesce(reached.next, 0),
        part.total,
        batch.closed_at IS NULL,
        coalesce(reached.next, 0) = part.total
    FROM part
    JOIN batch ON batch.batch_id = part.batch_id
    LEFT JOIN reached ON reached.lane_id = part.lane_id
),
span AS (
    INSERT INTO batchline.spans (lane_id, batch_id, outstanding, attempt, available_at)
    SELECT
        item.lane_id,
        part.batch_id,
        range_agg(int4range(item.ordinal, item.ordinal + 1)),
        item.attempt,
        item.available_at
    FROM item
    JOIN reached ON reached.lane_id = item.lane_id AND item.ordinal < reached.next
    JOIN part ON part.lane_id = item.lane_id
    GROUP BY item.lane_id, part.batch_id, item.attempt, item.available_at, item.ordinal / %(span_items)s::integer
)
SELECT
    count(*)::integer AS batches,
    count(*) FILTER (WHERE finalizing_at IS NULL)::integer AS open,
    count(pg_notify('batchline', 'open ' || id)) FILTER (WHERE finalizing_at IS NULL)::integer AS notified
FROM made
