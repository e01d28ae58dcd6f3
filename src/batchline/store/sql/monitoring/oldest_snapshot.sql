-- oldest_snapshot: for how many seconds, and for how many transactions, the oldest snapshot has kept PostgreSQL from removing
-- dead rows of this database.
--
-- Sessions, prepared transactions and replication slots hold snapshots. Only sessions and prepared transactions have a
-- time. PostgreSQL shows sessions of other roles only to members of pg_read_all_stats. Reads no table. Locks: none.
SELECT
    coalesce(extract(epoch FROM now() - least(session.began, prepared.began)), 0)::float8 AS seconds,
    greatest(session.transactions, prepared.transactions, slot.transactions, 0)::bigint AS transactions
FROM (
    SELECT min(xact_start) AS began, max(age(backend_xmin)) AS transactions
    FROM pg_stat_activity
    WHERE backend_xmin IS NOT NULL
      AND pid <> pg_backend_pid()
      -- A vacuum's own snapshot keeps nothing.
      AND backend_type <> 'autovacuum worker'
      AND (datname = current_database() OR datname IS NULL)
) AS session
CROSS JOIN (
    SELECT min(prepared) AS began, max(age(transaction)) AS transactions
    FROM pg_prepared_xacts
    WHERE database = current_database()
) AS prepared
CROSS JOIN (
    SELECT max(age(xmin)) AS transactions FROM pg_replication_slots WHERE xmin IS NOT NULL
) AS slot
