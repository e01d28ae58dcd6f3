-- doctor_chunks: chunks of a provider's batch that no worker has taken for two minutes, although they are due: no live worker has settings
-- for their upstream. Relays look for chunks every few seconds. A batch of `run` is left out: its own `run` goes on with it.
WITH
waiting AS (
    SELECT c.*, coalesce(w.lease_until, c.due_at) AS since
    FROM batchline.provider_chunks AS c
    JOIN batchline.spans AS s ON s.id = c.span_id AND s.task_id = 'chunk:' || c.id
    JOIN batchline.batches AS b ON b.id = c.batch_id
    LEFT JOIN batchline.workers AS w ON w.id = s.worker_id
    WHERE c.state <> 'done'
      AND NOT coalesce((b.settings ->> 'reserved')::boolean, false)
      AND (%(batch)s::uuid IS NULL OR c.batch_id = %(batch)s::uuid)
)
SELECT
    'chunk_unserved' AS name,
    NULL::uuid AS file_id,
    batch_id,
    lane_id,
    left(
        format(
            'chunk %%s with %%s lines for %%s (%%s, API %%s) has waited since %%s for a worker that serves this upstream; start one'
            ' whose settings name an upstream with this base_url and its API key, or cancel the batch',
            id, lines, upstream, base_url, api, to_char(since AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS "UTC"')
        ),
        500
    ) AS message
FROM waiting
WHERE since < now() - interval '2 minutes'
ORDER BY batch_id, lane_id, id
LIMIT %(max_findings)s
