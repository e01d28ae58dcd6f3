-- create_adopted_batches: create the batches of an adoption, in the transaction of the cutover, after measure_adopted_lanes.
-- create_adopted_lanes and create_adopted_spans follow.
--
-- A batch that was cancelled, and one without unfinished requests, is frozen at once, and a worker writes its files. Others
-- get at least `grace` seconds from now on; one without a deadline keeps none. Returns how many batches, and how many of them
-- are unfinished; workers are notified of these. Locks: only its own rows.
WITH
total AS (
    SELECT
        n.batch_id,
        sum(n.completed) AS completed,
        sum(n.failed) AS failed,
        sum(n.input_tokens) AS input_tokens,
        sum(n.cached_tokens) AS cached_tokens,
        sum(n.output_tokens) AS output_tokens,
        sum(n.reasoning_tokens) AS reasoning_tokens,
        CASE WHEN min(p.model) = max(p.model) THEN min(p.model) END AS model
    FROM batchline.adopted_batches AS b
    JOIN batchline.adopted_lanes AS n ON n.batch_id = b.batch_id
    JOIN batchline.adopted_file_lanes AS p ON p.file_no = b.file_no AND p.lane_no = n.lane_no
    GROUP BY n.batch_id
),
made AS (
    INSERT INTO batchline.batches (
        id, tenant, file_id, endpoint, completion_window, settings, metadata, total, completed, failed,
        input_tokens, cached_tokens, output_tokens, reasoning_tokens, created_at, in_progress_at, expires_at,
        cancelling_at, finalizing_at, model, planned_output_id
    )
    SELECT
        b.batch_id,
        CASE WHEN %(by_owner)s::boolean THEN coalesce(nullif(old.owner, ''), %(tenant)s::text) ELSE %(tenant)s::text END,
        old.file_id,
        old.endpoint,
        coalesce(old.completion_window, '24h'),
        CASE
            WHEN %(upstream)s::text IS NULL THEN '{}'::jsonb ELSE jsonb_build_object('upstream', %(upstream)s::text)
        END,
        (
            SELECT jsonb_object_agg(pair.key, pair.value)
            FROM jsonb_each_text(CASE jsonb_typeof(old.metadata) WHEN 'object' THEN old.metadata END) AS pair
            WHERE pair.value IS NOT NULL
        ),
        f.line_count,
        total.completed,
        total.failed,
        total.input_tokens,
        total.cached_tokens,
        total.output_tokens,
        total.reasoning_tokens,
        old.created_at,
        old.created_at,
        CASE
            WHEN old.expires_at IS NOT NULL THEN greatest(old.expires_at, now() + make_interval(secs => %(grace)s))
        END,
        coalesce(old.cancelling_at, old.cancelled_at),
        CASE WHEN b.unfinished = 0 OR coalesce(old.cancelling_at, old.cancelled_at) IS NOT NULL THEN now() END,
        total.model,
        old.output_file_id
    FROM batchline.adopted_batches AS b
    JOIN batchline.adopted_files AS f ON f.file_no = b.file_no
    JOIN batchline.source_batches AS old ON old.id = b.batch_id
    JOIN total ON total.batch_id = b.batch_id
    WHERE b.reason IS NULL
    RETURNING id, finalizing_at
)
SELECT
    count(*)::integer AS batches,
    count(*) FILTER (WHERE finalizing_at IS NULL)::integer AS open,
    count(pg_notify('batchline', 'open ' || id)) FILTER (WHERE finalizing_at IS NULL)::integer AS notified
FROM made
