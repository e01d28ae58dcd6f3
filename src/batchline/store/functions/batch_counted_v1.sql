-- batch_counted: a trigger after a batch has ended, was opened again or was deleted: count for its tenant what it has used
-- (count_usage). It counts once, in the transaction that ends it.
--
-- A retry opens a batch again, and it ends once more. `usage_counted` has what was counted before, as the retry has left the
-- counters: failures that it has put back count as failures, and count again if they fail again. A batch that is deleted
-- before it has ended counts with what its counters say then.
--
-- `deleted_batches` keeps the tenant of a deleted batch until nothing refers to the batch any more: rows of it in tables
-- without a tenant must be found if the tenant is erased.
--
-- Locks: the tenant's row.
CREATE FUNCTION batchline.batch_counted_v1() RETURNS trigger
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    batch batchline.batches;
    used record;
BEGIN
    IF TG_OP = 'UPDATE' AND NEW.ended_at IS NULL THEN
        INSERT INTO batchline.usage_counted AS c (
            batch_id, completed, failed, reused, input_tokens, cached_tokens, output_tokens, reasoning_tokens, cost
        )
        VALUES (
            NEW.id, NEW.completed, NEW.failed, NEW.reused, NEW.input_tokens, NEW.cached_tokens, NEW.output_tokens,
            NEW.reasoning_tokens, NEW.cost
        )
        ON CONFLICT (batch_id) DO UPDATE SET
            completed = excluded.completed,
            failed = excluded.failed,
            reused = excluded.reused,
            input_tokens = excluded.input_tokens,
            cached_tokens = excluded.cached_tokens,
            output_tokens = excluded.output_tokens,
            reasoning_tokens = excluded.reasoning_tokens,
            cost = excluded.cost;
        RETURN NULL;
    END IF;
    IF TG_OP = 'DELETE' THEN
        batch := OLD;
    ELSE
        batch := NEW;
    END IF;
    IF TG_OP <> 'DELETE' OR batch.ended_at IS NULL THEN
        SELECT
            coalesce(n.completed, batch.completed) - coalesce(c.completed, 0) AS completed,
            coalesce(n.failed, batch.failed) - coalesce(c.failed, 0) AS failed,
            batch.reused - coalesce(c.reused, 0) AS reused,
            coalesce(n.input_tokens, batch.input_tokens) - coalesce(c.input_tokens, 0) AS input_tokens,
            coalesce(n.cached_tokens, batch.cached_tokens) - coalesce(c.cached_tokens, 0) AS cached_tokens,
            coalesce(n.output_tokens, batch.output_tokens) - coalesce(c.output_tokens, 0) AS output_tokens,
            coalesce(n.reasoning_tokens, batch.reasoning_tokens) - coalesce(c.reasoning_tokens, 0) AS reasoning_tokens,
            coalesce(n.cost, batch.cost) - coalesce(c.cost, 0) AS cost,
            c.batch_id IS NULL AS first
        INTO used
        FROM (SELECT batch.id) AS b
        LEFT JOIN batchline.usage_counted AS c ON c.batch_id = b.id
        LEFT JOIN LATERAL (
            SELECT * FROM batchline.counters WHERE counters.batch_id = b.id ORDER BY counters.seq DESC LIMIT 1
        ) AS n ON true;
        PERFORM batchline.count_usage_v1(
            batch.tenant,
            more_batches => used.first::integer,
            more_lines => used.completed + used.failed,
            more_failed => used.failed,
            more_reused => used.reused,
            more_input_tokens => used.input_tokens,
            more_cached_tokens => used.cached_tokens,
            more_output_tokens => used.output_tokens,
            more_reasoning_tokens => used.reasoning_tokens,
            more_cost => used.cost
        );
    END IF;
    IF TG_OP = 'DELETE' THEN
        DELETE FROM batchline.usage_counted AS c WHERE c.batch_id = batch.id;
        INSERT INTO batchline.deleted_batches (batch_id, tenant) VALUES (batch.id, batch.tenant) ON CONFLICT DO NOTHING;
    END IF;
    RETURN NULL;
END
$$;
