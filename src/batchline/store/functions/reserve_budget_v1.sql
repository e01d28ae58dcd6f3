-- reserve_budget: reserve what requests may cost before they are sent, and pause the batch when its cap is reached.
--
-- `held_cost` and `held_tokens` are what `holder` still needs of its earlier reservations; they replace what it had before,
-- so a call that is repeated after a lost answer changes nothing more. `in_flight`: it has requests in flight, so that some
-- of that will be free again. The wanted requests are granted in their order, as many as fit: spent, held by all, and
-- granted never exceed a cap. `granted` is their number. `state`: `open`; `closed`, nothing may be sent, because the batch
-- was paused or closed; `paused`, the same, and this call has paused it: the first request does not fit, and no request of
-- any live worker is in flight that could make room.
--
-- Why the sum is safe: a settle adds to what is spent, and its worker reduces what it holds only later. So spent and held
-- together are never less than what was sent. What a lost worker held stays held: its requests may have been charged.
--
-- Locks: the batch row, as settle does; each statement after it sees what the last holder of that lock has committed. To
-- pause, the lanes in id order, as close does. Settles and claims of batches without a cap never come here.
CREATE FUNCTION batchline.reserve_budget_v1(
    batch uuid, holder uuid, worker uuid, held_cost bigint, held_tokens bigint, in_flight boolean,
    wanted_costs bigint[], wanted_tokens bigint[], OUT granted integer, OUT state text
)
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    facts record;
    others record;
    own record;
    cost_left numeric;
    tokens_left numeric;
    given_cost numeric;
    given_tokens numeric;
    -- More than any cap, and sums of two fit.
    largest CONSTANT bigint := 4611686018427387903;
BEGIN
    PERFORM batchline.require_read_committed_v1();
    granted := 0;
    state := 'closed';
    PERFORM FROM batchline.batches AS b WHERE b.id = batch FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    SELECT
        (b.settings -> 'spending' ->> 'max_cost')::numeric AS max_cost,
        (b.settings -> 'spending' ->> 'max_tokens')::numeric AS max_tokens,
        b.cost,
        b.input_tokens + b.output_tokens AS tokens,
        b.paused_at IS NULL AND b.cancelling_at IS NULL AND b.expiring_at IS NULL AND b.finalizing_at IS NULL AS open
    INTO facts
    FROM batchline.current_batches AS b
    WHERE b.id = batch;

    -- One probe for each holder: its newest row is the first index entry, however many dead ones follow.
    WITH RECURSIVE
    newest AS (
        (
            SELECT h.* FROM batchline.budget_holds AS h
            WHERE h.batch_id = batch
            ORDER BY h.batch_id, h.holder, h.seq DESC LIMIT 1
        )
        UNION ALL
        SELECT following.*
        FROM newest
        CROSS JOIN LATERAL (
            SELECT h.* FROM batchline.budget_holds AS h
            WHERE h.batch_id = batch AND h.holder > newest.holder
            ORDER BY h.batch_id, h.holder, h.seq DESC LIMIT 1
        ) AS following
    )
    SELECT
        coalesce(sum(newest.cost), 0) AS cost,
        coalesce(sum(newest.tokens), 0) AS tokens,
        coalesce(bool_or(
            newest.busy AND EXISTS (SELECT FROM batchline.workers AS w WHERE w.id = newest.worker_id AND w.lease_until >= now())
        ), false) AS in_flight
    INTO others
    FROM newest
    WHERE newest.holder <> reserve_budget_v1.holder;

    cost_left := facts.max_cost - facts.cost - held_cost - others.cost;
    tokens_left := facts.max_tokens - facts.tokens - held_tokens - others.tokens;
    IF facts.open THEN
        state := 'open';
        SELECT count(*), coalesce(max(up_to.cost), 0), coalesce(max(up_to.tokens), 0)
        INTO granted, given_cost, given_tokens
        FROM (
            SELECT sum(w.cost) OVER earlier AS cost, sum(w.tokens) OVER earlier AS tokens
            FROM unnest(wanted_costs, wanted_tokens) WITH ORDINALITY AS w (cost, tokens, nth)
            WINDOW earlier AS (ORDER BY w.nth)
        ) AS up_to
        WHERE (facts.max_cost IS NULL OR up_to.cost <= cost_left)
          AND (facts.max_tokens IS NULL OR up_to.tokens <= tokens_left);
        IF granted = 0 AND cardinality(wanted_costs) > 0 AND NOT in_flight AND NOT others.in_flight THEN
            state := 'paused';
            UPDATE batchline.batches AS b
            SET paused_at = now(),
                paused_by = CASE WHEN wanted_costs[1] > cost_left THEN 'max_cost' ELSE 'max_tokens' END
            WHERE b.id = batch;
            PERFORM FROM batchline.lanes AS n WHERE n.batch_id = batch ORDER BY n.id FOR NO KEY UPDATE;
            UPDATE batchline.lanes AS n SET open = false WHERE n.batch_id = batch;
            INSERT INTO batchline.outbox (id, batch_id, type) VALUES (gen_random_uuid(), batch, 'batch.paused');
            PERFORM pg_notify('batchline', 'closed ' || batch);
        END IF;
    END IF;

    held_cost := least(held_cost + coalesce(given_cost, 0), largest);
    held_tokens := least(held_tokens + coalesce(given_tokens, 0), largest);
    SELECT h.seq, h.worker_id, h.busy, h.cost, h.tokens INTO own
    FROM batchline.budget_holds AS h
    WHERE h.batch_id = batch AND h.holder = reserve_budget_v1.holder
    ORDER BY h.seq DESC
    LIMIT 1;
    IF (own.worker_id, own.busy, own.cost, own.tokens)
        IS DISTINCT FROM (worker, in_flight OR granted > 0, held_cost, held_tokens)
    THEN
        INSERT INTO batchline.budget_holds (batch_id, holder, worker_id, busy, cost, tokens)
        VALUES (batch, holder, worker, in_flight OR granted > 0, held_cost, held_tokens);
        DELETE FROM batchline.budget_holds AS h
        WHERE h.batch_id = batch AND h.holder = reserve_budget_v1.holder AND h.seq = own.seq;
    END IF;
END
$$;
