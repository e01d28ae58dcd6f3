-- server_time: the time of the database. Locks: none.
SELECT now() AS now
