-- bound_idle: for the rest of this transaction, a client that goes silent loses its connection, and with it the locks
-- that all who submit wait for. Ours sends its statements one after the other, without a pause.
SET LOCAL idle_in_transaction_session_timeout = '10s'
