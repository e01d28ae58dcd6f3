-- minimum_create: delete all results, so that nothing has run.
TRUNCATE results
