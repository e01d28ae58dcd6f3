-- reserve_budget: reserve what requests may cost. See functions/reserve_budget_v1.sql.
SELECT granted, state FROM batchline.reserve_budget_v1(
    %(batch)s, %(holder)s, %(worker)s, %(held_cost)s::bigint, %(held_tokens)s::bigint, %(in_flight)s,
    %(wanted_costs)b, %(wanted_tokens)b
)
