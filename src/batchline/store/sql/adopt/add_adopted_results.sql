-- add_adopted_results: store results that were composed from finished requests, and the tokens that results have no column
-- for. A result that another pass stored before is left as it is. Returns the number of new ones. Locks: its own rows, and
-- the reserved lanes.
WITH
given AS (
    SELECT *
    FROM unnest(
        %(lanes)s::bigint[], %(line_nos)s::integer[], %(ordinals)s::integer[], %(outcomes)s::text[],
        %(status_codes)s::smallint[], %(attempts)s::smallint[], %(input_tokens)s::integer[],
        %(output_tokens)s::integer[], %(cached_tokens)s::bigint[], %(reasoning_tokens)s::bigint[],
        %(finished)s::timestamptz[], %(outputs)s::text[]
    ) AS g (
        lane_id, line_no, ordinal, outcome, status_code, attempt, input_tokens, output_tokens, cached_tokens,
        reasoning_tokens, finished_at, output
    )
),
result AS (
    INSERT INTO batchline.results (
        lane_id, line_no, ordinal, outcome, status_code, attempt, input_tokens, output_tokens, finished_at, output
    )
    SELECT
        lane_id, line_no, ordinal, outcome::batchline.outcome, status_code, attempt, input_tokens, output_tokens,
        finished_at, output
    FROM given
    ON CONFLICT (lane_id, line_no) DO NOTHING
    RETURNING lane_id, line_no
),
counted AS (
    UPDATE batchline.adopted_lanes AS n
    SET cached_tokens = n.cached_tokens + more.cached_tokens,
        reasoning_tokens = n.reasoning_tokens + more.reasoning_tokens
    FROM (
        SELECT lane_id, sum(cached_tokens) AS cached_tokens, sum(reasoning_tokens) AS reasoning_tokens
        FROM given
        JOIN result USING (lane_id, line_no)
        GROUP BY lane_id
    ) AS more
    WHERE n.lane_id = more.lane_id AND (more.cached_tokens > 0 OR more.reasoning_tokens > 0)
)
SELECT count(*)::integer FROM result
