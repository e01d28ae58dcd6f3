-- python_workers: whether a worker of a Python app is connected to this database. Its session for polls has a name of its
-- own. A pooler in between may hide it.
SELECT EXISTS (
    SELECT FROM pg_stat_activity WHERE datname = current_database() AND application_name = %(name)s
)
