-- submit_operation: create a governed batch with its lines, in the transaction that holds the limit locks: the file,
-- its one lane, one line per child, the batch, its lane, and its owner. All of it or nothing.
--
-- `custom_ids` and `bodies` are in the order of the children. A batch that waits for an approval or is submitted with
-- `hold` starts with its lane closed, so no worker claims from it. Its created_at is from the clock: the cooldown starts
-- then, and the transaction may have waited for locks. Locks: only its own rows.
WITH
file AS (
    INSERT INTO batchline.files (id, tenant, purpose, filename, bytes, line_count)
    VALUES (
        %(file)s,
        %(tenant)s,
        'operation',
        %(operation)s || '.jsonl',
        %(bytes)s,
        cardinality(%(bodies)s::text[])
    )
    RETURNING id, no, line_count
),
part AS (
    INSERT INTO batchline.file_lanes (file_no, lane_no, model, url, total)
    SELECT no, 0, %(operation)s, %(url)s, line_count FROM file
),
line AS (
    INSERT INTO batchline.lines (file_no, lane_no, ordinal, line_no, custom_id, body)
    SELECT file.no, 0, child.nth - 1, child.nth, child.custom_id, child.body
    FROM file
    CROSS JOIN unnest(%(custom_ids)s::text[], %(bodies)s::text[]) WITH ORDINALITY AS child (custom_id, body, nth)
),
batch AS (
    INSERT INTO batchline.batches (
        id, tenant, file_id, endpoint, completion_window, settings, total, created_at, in_progress_at, expires_at, model,
        submitted_by, held_at
    )
    SELECT
        %(batch)s,
        %(tenant)s,
        file.id,
        %(url)s,
        %(window)s,
        %(settings)s,
        file.line_count,
        clock_timestamp(),
        now(),
        now() + make_interval(secs => %(window_seconds)s),
        %(operation)s,
        %(user)s,
        CASE WHEN %(hold)s::boolean OR %(approval)s = 'pending' THEN now() END
    FROM file
    RETURNING *
),
governed AS (
    INSERT INTO batchline.operation_batches (
        batch_id, tenant, user_id, operation, request_id, fingerprint, reason, created_at, updated_at, approval, held
    )
    SELECT
        batch.id,
        batch.tenant,
        batch.submitted_by,
        %(operation)s,
        %(request_id)s::uuid,
        %(fingerprint)s,
        %(reason)s,
        batch.created_at,
        batch.created_at,
        %(approval)s,
        %(hold)s
    FROM batch
),
lane AS (
    INSERT INTO batchline.lanes (batch_id, tenant, key, deadline, file_no, lane_no, model, url, total, open)
    SELECT
        batch.id,
        batch.tenant,
        -- The key is the URL, not the name, which a model might also have: workers without operations skip all
        -- keys of this form.
        %(url)s,
        batch.expires_at,
        file.no,
        0,
        %(operation)s,
        %(url)s,
        file.line_count,
        batch.held_at IS NULL
    FROM batch
    CROSS JOIN file
)
SELECT CASE WHEN held_at IS NULL THEN pg_notify('batchline', 'open ' || id) IS NULL END AS notified FROM batch
