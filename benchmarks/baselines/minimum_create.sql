-- minimum_create: as if nothing had been run.
TRUNCATE results
