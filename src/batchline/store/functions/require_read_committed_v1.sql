-- require_read_committed: refuse to run in a transaction that keeps one snapshot.
--
-- The statements of claim, settle and conclude rely on it that each sees what was committed before it began. Under
-- REPEATABLE READ a statement after the lock of a row would still see the old cursor or the old counters, and no error
-- would tell, because the locked row itself does not change. A database or role can have such a default.
CREATE FUNCTION batchline.require_read_committed_v1() RETURNS void
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION USING
            ERRCODE = 'invalid_transaction_state',
            MESSAGE = 'transactions must be READ COMMITTED, not ' || upper(current_setting('transaction_isolation'));
    END IF;
END
$$;
