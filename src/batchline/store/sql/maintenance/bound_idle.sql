-- bound_idle: for the rest of this transaction, disconnect a client that stops sending statements, so that it releases
-- the locks that all submissions wait for. Our own statements follow each other without a pause.
SET LOCAL idle_in_transaction_session_timeout = '10s'
