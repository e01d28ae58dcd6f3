-- doctor_results: check the invariant of each lane: [0, next) is the disjoint union of the ordinals of results and the
-- outstanding ordinals of spans. Also check that the batch's counters match its results.
--
-- One pass over `results`, each compared with its line. A result's key is its line number, and each line has one number
-- and one ordinal. So if all results match their lines, no ordinal occurs twice, and the sum of the counts proves the
-- union. The outstanding ordinals come from outside the pass (LATERAL); otherwise a join that spills to disk would
-- write them once per row.
--
-- A frozen batch has no spans: its results lie within [0, next) and need not fill it. In a batch with lines that a retry has
-- left out (left_out), these have neither, so the sum over its lanes is compared.
WITH
lane AS MATERIALIZED (
    SELECT
        n.id,
        n.batch_id,
        n.file_no,
        n.lane_no,
        n.next,
        b.finalizing_at IS NOT NULL OR b.ended_at IS NOT NULL AS frozen,
        b.left_out,
        EXISTS (SELECT FROM batchline.retry_attempts AS a WHERE a.lane_id = n.id) AS retried,
        -- The file of an ended batch may be deleted with its lines.
        b.ended_at IS NULL OR EXISTS (
            SELECT FROM batchline.files AS f WHERE f.no = n.file_no AND f.deleted_at IS NULL
        ) AS has_lines,
        coalesce(held.outstanding, '{}') AS outstanding,
        coalesce(held.items, 0) AS held
    FROM batchline.current_lanes AS n
    JOIN batchline.batches AS b ON b.id = n.batch_id
    LEFT JOIN (
        SELECT s.lane_id, range_agg(piece) AS outstanding, sum(upper(piece) - lower(piece)) AS items
        FROM batchline.spans AS s
        CROSS JOIN LATERAL unnest(s.outstanding) AS piece
        WHERE %(batch)s::uuid IS NULL OR s.batch_id = %(batch)s::uuid
        GROUP BY s.lane_id
    ) AS held ON held.lane_id = n.id
    WHERE %(batch)s::uuid IS NULL OR n.batch_id = %(batch)s::uuid
),
counted AS MATERIALIZED (
    SELECT n.id, n.batch_id, n.next, n.frozen, n.left_out, n.retried, n.has_lines, n.held, c.*
    FROM lane AS n
    CROSS JOIN LATERAL (
        SELECT
            count(*) AS results,
            count(*) FILTER (WHERE r.ordinal < 0 OR r.ordinal >= n.next) AS outside,
            count(*) FILTER (WHERE n.outstanding @> r.ordinal) AS unfinished,
            count(*) FILTER (WHERE l.line_no IS DISTINCT FROM r.line_no) AS strangers,
            min(r.line_no) FILTER (WHERE l.line_no IS DISTINCT FROM r.line_no) AS first_stranger,
            count(*) FILTER (WHERE r.outcome = 'completed') AS completed,
            count(*) FILTER (WHERE r.outcome = 'failed') AS failed,
            count(*) FILTER (WHERE r.attempt = 0) AS reused,
            coalesce(sum(r.input_tokens), 0) AS input_tokens,
            coalesce(sum(r.output_tokens), 0) AS output_tokens
        FROM batchline.results AS r
        LEFT JOIN batchline.lines AS l ON l.file_no = n.file_no AND l.lane_no = n.lane_no AND l.ordinal = r.ordinal
        WHERE r.lane_id = n.id
    ) AS c
),
tally AS (
    SELECT
        batch_id,
        sum(completed) AS completed,
        sum(failed) AS failed,
        sum(reused) AS reused,
        sum(input_tokens) AS input_tokens,
        sum(output_tokens) AS output_tokens,
        bool_or(retried) AS retried
    FROM counted
    GROUP BY batch_id
),
finding AS (
    SELECT
        'partition' AS name,
        batch_id,
        id AS lane_id,
        format('%%s items are claimed, but %%s have results and %%s are outstanding', next, results, held) AS message
    FROM counted
    WHERE results + held <> next AND NOT frozen AND left_out = 0
    UNION ALL
    SELECT
        'partition',
        batch_id,
        NULL,
        format(
            '%%s items were left out by a retry, but %%s have neither a result nor are outstanding',
            left_out,
            sum(next - results - held)
        )
    FROM counted
    WHERE NOT frozen AND left_out > 0
    GROUP BY batch_id, left_out
    HAVING sum(next - results - held) <> left_out
    UNION ALL
    SELECT 'result_range', batch_id, id, format('%%s results belong to items outside [0,%%s)', outside, next)
    FROM counted
    WHERE outside > 0
    UNION ALL
    SELECT 'result_outstanding', batch_id, id, format('%%s items have a result but are still outstanding', unfinished)
    FROM counted
    WHERE unfinished > 0
    UNION ALL
    SELECT
        'result_line',
        batch_id,
        id,
        format('%%s results do not match their line; the first is line %%s', strangers, first_stranger)
    FROM counted
    WHERE strangers > 0 AND has_lines
    UNION ALL
    SELECT
        'counters',
        b.id,
        NULL,
        format(
            'the batch counts %%s completed, %%s failed, %%s input and %%s output tokens; its results say %%s, %%s, %%s and %%s',
            b.completed,
            b.failed,
            b.input_tokens,
            b.output_tokens,
            t.completed,
            t.failed,
            t.input_tokens,
            t.output_tokens
        )
    FROM batchline.current_batches AS b
    JOIN tally AS t ON t.batch_id = b.id
    -- Counters outlive the results.
    WHERE b.purging_at IS NULL
      AND (
          (b.completed, b.failed) <> (t.completed, t.failed)
          OR b.input_tokens < t.input_tokens
          OR b.output_tokens < t.output_tokens
          -- Attempts that were tried again have used tokens, too, and have no result.
          OR NOT t.retried AND (b.input_tokens, b.output_tokens) <> (t.input_tokens, t.output_tokens)
      )
    UNION ALL
    SELECT 'reused', b.id, NULL, format('the batch counts %%s reused answers; its results say %%s', b.reused, t.reused)
    FROM batchline.batches AS b
    JOIN tally AS t ON t.batch_id = b.id
    WHERE b.purging_at IS NULL AND b.reused <> t.reused
    UNION ALL
    -- A duplicate that was sent after all is not counted.
    SELECT 'duplicates', b.id, NULL, format('the batch counts %%s answered duplicates; %%s have a result', b.duplicates, d.answered)
    FROM batchline.batches AS b
    CROSS JOIN LATERAL (
        SELECT count(*) AS answered
        FROM batchline.duplicates AS d
        CROSS JOIN LATERAL unnest(d.line_nos) AS line (no)
        JOIN batchline.results AS r ON r.lane_id = d.lane_id AND r.line_no = line.no
        WHERE d.batch_id = b.id
    ) AS d
    WHERE b.duplicates > d.answered
      AND b.duplicates > 0
      AND b.purging_at IS NULL
      AND (%(batch)s::uuid IS NULL OR b.id = %(batch)s::uuid)
)
SELECT name, NULL::uuid AS file_id, batch_id, lane_id, message
FROM finding
ORDER BY name, batch_id, lane_id
LIMIT %(max_findings)s
