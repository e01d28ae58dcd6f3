-- connections: how many connections the server has, how many of these are Batchline's, and how many it allows. Connections
-- of a pooler count as Batchline's if the pooler passes `application_name` on. Reads no table. Locks: none.
SELECT
    count(*) AS used,
    count(*) FILTER (WHERE application_name LIKE 'batchline %%') AS own,
    current_setting('max_connections')::integer AS allowed
FROM pg_stat_activity
WHERE backend_type = 'client backend'
