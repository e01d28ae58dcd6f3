-- judge_batches: count the requests of each old batch by state, and decide whether it can be adopted: if each line of its
-- file has exactly one request.
--
-- One pass over the old requests, at the cutover. Locks: the rows of adopted_batches.
WITH
tally AS (
    SELECT
        b.batch_id,
        f.line_count,
        f.not_post,
        count(r.id) AS requests,
        count(DISTINCT a.line_no) AS lines,
        count(*) FILTER (WHERE r.state = 'completed') AS completed,
        count(*) FILTER (WHERE r.state = 'failed') AS failed,
        count(*) FILTER (WHERE r.state = 'canceled') AS canceled,
        count(*) FILTER (WHERE r.state IN ('pending', 'claimed', 'processing')) AS unfinished,
        min(r.state) FILTER (
            WHERE r.state NOT IN ('completed', 'failed', 'canceled', 'pending', 'claimed', 'processing')
        ) AS unknown_state
    FROM batchline.adopted_batches AS b
    JOIN batchline.adopted_files AS f ON f.file_no = b.file_no
    LEFT JOIN batchline.source_requests AS r ON r.batch_id = b.batch_id
    LEFT JOIN batchline.adopted_lines AS a ON a.template_id = r.template_id AND a.file_no = b.file_no
    GROUP BY b.batch_id, f.line_count, f.not_post
)
UPDATE batchline.adopted_batches AS b
SET completed = t.completed,
    failed = t.failed,
    canceled = t.canceled,
    unfinished = t.unfinished,
    reason = CASE
        WHEN old.deleted_at IS NOT NULL THEN 'it was deleted'
        WHEN t.unknown_state IS NOT NULL THEN format('a request has the unknown state %%s', t.unknown_state)
        WHEN t.not_post > 0 THEN 'its file has requests that are not POST requests'
        WHEN t.requests <> t.line_count OR t.lines <> t.line_count
            THEN format('its file has %%s lines, but it has %%s requests for %%s of them', t.line_count, t.requests, t.lines)
    END
FROM tally AS t
LEFT JOIN batchline.source_batches AS old ON old.id = t.batch_id
WHERE b.batch_id = t.batch_id
