-- lease_rates: give away a part of budgets per minute to one worker. See docs/decisions/0026.
--
-- A budget is a timeline: `given_until` is the time up to which its rate is given away. Whoever wants an amount gets the next
-- part of the timeline, in the order in which workers asked: so no worker starves, and no amount is given twice. `wanted` are
-- amounts in seconds of their budgets (10 requests of 600 per minute are one second). `returned` are amounts that an earlier
-- call got and the worker has not used, in seconds, too; negative: it has used more than it got. For each budget, returns the
-- seconds until the worker may use what it got. `ids` are distinct. `at` is the time of the call, by the database's clock.
--
-- What nobody asked for is lost, except the last half second: a worker asks for half a second at a time, so together they
-- use no more than the rate and one second's worth. What a worker got and lost in a crash is never given again.
--
-- Nothing is given away that begins more than five minutes later. Then the answer is negative: the worker got nothing, and asks
-- again after that many seconds. So workers that crash over and over waste five minutes at most. One request, and what one call
-- gives back or reports, counts for five minutes at most: nobody waits for a day because of one request.
--
-- `given_at` is the time of the last call. If the clock was set back since, by more than the minute that a call may have waited
-- for the lock, `given_until` goes back with it.
--
-- The lock row of a budget never changes, and its newest state is the first entry of the index. So an old snapshot that keeps
-- dead states slows down nothing. Budgets that nobody has used for a day are deleted when one is added.
--
-- Locks: the rows of the budgets in the order of their ids, until the end of this statement. Nothing else.
CREATE FUNCTION batchline.lease_rates_v1(
    ids uuid[], names text[], wanted float8[], returned float8[], at timestamptz
) RETURNS float8[]
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    budget record;
    last record;
    starts timestamptz;
    next timestamptz;
    waits float8[] := array_fill(0::float8, ARRAY[cardinality(ids)]);
    added boolean := false;
    slack CONSTANT interval := '0.5 s';
    horizon CONSTANT interval := '5 min';
    latest_call CONSTANT interval := '1 min';
    kept CONSTANT interval := '1 day';
BEGIN
    PERFORM batchline.require_read_committed_v1();
    FOR budget IN
        SELECT w.*
        FROM unnest(ids, names, wanted, returned) WITH ORDINALITY AS w (id, name, wanted, returned, nth)
        ORDER BY w.id
    LOOP
        PERFORM FROM batchline.rate_budgets AS b WHERE b.id = budget.id FOR NO KEY UPDATE;
        IF NOT FOUND THEN
            INSERT INTO batchline.rate_budgets (id, name) VALUES (budget.id, budget.name) ON CONFLICT DO NOTHING;
            PERFORM FROM batchline.rate_budgets AS b WHERE b.id = budget.id FOR NO KEY UPDATE;
            added := true;
        END IF;
        -- A statement after the lock: it sees what the last holder has committed.
        SELECT
            s.seq,
            CASE WHEN s.given_at > at + latest_call THEN at ELSE greatest(s.given_at, at) END AS given_at,
            CASE WHEN s.given_at > at + latest_call THEN s.given_until - (s.given_at - at) ELSE s.given_until END AS given_until
        INTO last
        FROM batchline.rate_budget_states AS s
        WHERE s.budget_id = budget.id
        ORDER BY s.seq DESC
        LIMIT 1;
        starts := greatest(
            coalesce(last.given_until, at)
            - greatest(least(make_interval(secs => budget.returned), horizon), -horizon),
            at - slack
        );
        IF starts > at + horizon THEN
            next := starts;
            waits[budget.nth] := least(extract(epoch FROM at + horizon - starts), -1);
        ELSE
            next := starts + least(make_interval(secs => budget.wanted), horizon);
            waits[budget.nth] := greatest(extract(epoch FROM starts - at), 0);
        END IF;
        INSERT INTO batchline.rate_budget_states (budget_id, given_at, given_until)
        VALUES (budget.id, coalesce(last.given_at, at), next);
        DELETE FROM batchline.rate_budget_states AS s WHERE s.budget_id = budget.id AND s.seq = last.seq;
    END LOOP;
    IF added THEN
        WITH
        stale AS (
            SELECT b.id
            FROM batchline.rate_budgets AS b
            WHERE b.id <> ALL (ids)
              AND NOT EXISTS (
                SELECT FROM batchline.rate_budget_states AS s
                WHERE s.budget_id = b.id AND s.given_until > at - kept
            )
            LIMIT 1000
            FOR UPDATE SKIP LOCKED
        ),
        stale_states AS (
            DELETE FROM batchline.rate_budget_states AS s USING stale WHERE s.budget_id = stale.id
        )
        DELETE FROM batchline.rate_budgets AS b USING stale WHERE b.id = stale.id;
    END IF;
    RETURN waits;
END
$$;
