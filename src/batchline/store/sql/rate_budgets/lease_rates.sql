-- lease_rates: give a worker a part of budgets per minute. See functions/lease_rates_v1.sql, also for the locks.
SELECT batchline.lease_rates_v1(%(ids)s, %(names)s, %(wanted)b, %(returned)b, clock_timestamp())
