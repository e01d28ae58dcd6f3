-- count_usage: add to what a tenant has used today, and to the bytes that it stores. The one writer of tenant_usage.
--
-- A row is appended, and the one before deleted, as with `counters` (docs/decisions/0014). The newest row of a tenant has the
-- bytes that are stored now. `enforced`: refuse more bytes than the quota. Bytes of outputs are not refused.
--
-- Locks: the tenant's row FOR NO KEY UPDATE, until the transaction ends. So changes of one tenant come one after the other,
-- and each reads, in a later statement, what the one before has committed: two uploads cannot exceed the quota together.
-- No transaction waits for a span, a batch, a lane or a file while it has this lock, except for rows that nobody locks
-- together with a tenant.
CREATE FUNCTION batchline.count_usage_v1(
    tenant text, more_stored bigint DEFAULT 0, more_added bigint DEFAULT 0, enforced boolean DEFAULT false,
    more_batches bigint DEFAULT 0, more_lines bigint DEFAULT 0, more_failed bigint DEFAULT 0,
    more_reused bigint DEFAULT 0, more_input_tokens bigint DEFAULT 0, more_cached_tokens bigint DEFAULT 0,
    more_output_tokens bigint DEFAULT 0, more_reasoning_tokens bigint DEFAULT 0, more_cost bigint DEFAULT 0
) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_column
DECLARE
    owner text := tenant;
    quota bigint;
    before batchline.tenant_usage;
    today date := (now() AT TIME ZONE 'UTC')::date;
    same_day boolean;
BEGIN
    PERFORM batchline.require_read_committed_v1();
    SELECT t.max_bytes INTO quota FROM batchline.tenants AS t WHERE t.name = owner FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        INSERT INTO batchline.tenants (name) VALUES (owner) ON CONFLICT DO NOTHING;
        SELECT t.max_bytes INTO quota FROM batchline.tenants AS t WHERE t.name = owner FOR NO KEY UPDATE;
    END IF;
    SELECT u.* INTO before
    FROM batchline.tenant_usage AS u
    WHERE u.tenant = owner
    ORDER BY u.day DESC, u.seq DESC
    LIMIT 1;
    IF enforced AND more_stored > 0 AND coalesce(before.stored, 0) + more_stored > quota THEN
        RAISE EXCEPTION USING
            MESSAGE = 'tenant "' || owner || '" stores ' || coalesce(before.stored, 0) || ' bytes of its quota of '
                || quota || ', so ' || more_stored || ' more do not fit',
            ERRCODE = 'BLQ01';
    END IF;
    -- A transaction that began yesterday may commit after one of today.
    same_day := coalesce(before.day >= today, false);
    INSERT INTO batchline.tenant_usage (
        tenant, day, stored, added, batches, lines, failed, reused,
        input_tokens, cached_tokens, output_tokens, reasoning_tokens, cost
    )
    VALUES (
        owner,
        CASE WHEN same_day THEN before.day ELSE today END,
        coalesce(before.stored, 0) + more_stored,
        CASE WHEN same_day THEN before.added ELSE 0 END + more_added,
        CASE WHEN same_day THEN before.batches ELSE 0 END + more_batches,
        CASE WHEN same_day THEN before.lines ELSE 0 END + more_lines,
        CASE WHEN same_day THEN before.failed ELSE 0 END + more_failed,
        CASE WHEN same_day THEN before.reused ELSE 0 END + more_reused,
        CASE WHEN same_day THEN before.input_tokens ELSE 0 END + more_input_tokens,
        CASE WHEN same_day THEN before.cached_tokens ELSE 0 END + more_cached_tokens,
        CASE WHEN same_day THEN before.output_tokens ELSE 0 END + more_output_tokens,
        CASE WHEN same_day THEN before.reasoning_tokens ELSE 0 END + more_reasoning_tokens,
        CASE WHEN same_day THEN before.cost ELSE 0 END + more_cost
    );
    IF same_day THEN
        DELETE FROM batchline.tenant_usage AS u
        WHERE u.tenant = owner AND u.day = before.day AND u.seq = before.seq;
    END IF;
END
$$;
