-- array_claim: the array design's claim (docs/why-not-the-array.md), with the one condition that lets it end (a
-- line that has a request in this batch is not claimed again). Also returns the bodies.
WITH
latest_retry AS (
    SELECT DISTINCT ON (template_id, batch_id) template_id, batch_id, not_before
    FROM retry_attempts
    ORDER BY template_id, batch_id, attempt DESC
),
claimable AS (
    SELECT t.id AS template_id, b.id AS batch_id
    FROM request_templates AS t
    JOIN batches AS b ON b.file_id = t.file_id
    LEFT JOIN latest_retry AS lr ON lr.template_id = t.id AND lr.batch_id = b.id
    WHERE t.model = %(model)s
      AND b.cancelling_at IS NULL
      AND NOT (b.id = ANY (t.batches_active_in))
      AND NOT EXISTS (SELECT FROM requests AS r WHERE r.batch_id = b.id AND r.template_id = t.id)
      AND (lr.not_before IS NULL OR lr.not_before <= now())
    ORDER BY b.expires_at ASC NULLS LAST, t.line_number
    LIMIT {limit}
    FOR UPDATE OF t SKIP LOCKED
),
marked AS (
    UPDATE request_templates AS t
    SET batches_active_in = array_append(t.batches_active_in, c.batch_id)
    FROM claimable AS c
    WHERE t.id = c.template_id
    RETURNING c.template_id, c.batch_id, t.model, t.custom_id, t.body
),
created AS (
    INSERT INTO requests (batch_id, template_id, state, daemon_id, claimed_at, model)
    SELECT batch_id, template_id, 'claimed', %(daemon)s, now(), model
    FROM marked
    RETURNING id, template_id
)
SELECT created.id, marked.custom_id, marked.body
FROM created
JOIN marked USING (template_id)
