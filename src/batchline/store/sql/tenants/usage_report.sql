-- usage_report: what tenants have used in each day, month or the whole time (`by`): of one tenant, or of all (NULL). `since` is
-- the first day, `until` the first day after the last. A page begins after (`after_period`, `after_tenant`).
--
-- Reads one row per tenant and day with a change, by an index, and no items. Locks: none.
WITH
used AS (
    (
        SELECT u.*
        FROM batchline.tenant_usage AS u
        WHERE u.tenant = %(tenant)s::text AND u.day >= %(since)s::date AND u.day < %(until)s::date
    )
    UNION ALL
    (
        SELECT u.*
        FROM batchline.tenant_usage AS u
        WHERE %(tenant)s::text IS NULL AND u.day >= %(since)s::date AND u.day < %(until)s::date
    )
),
period AS (
    SELECT
        CASE %(by)s::text
            WHEN 'day' THEN used.day
            WHEN 'month' THEN greatest(date_trunc('month', used.day::timestamp)::date, %(since)s::date)
            ELSE %(since)s::date
        END AS first_day,
        used.*
    FROM used
)
SELECT
    period.tenant,
    period.first_day,
    (array_agg(period.stored ORDER BY period.day DESC))[1] AS stored,
    sum(period.added) AS added,
    sum(period.batches) AS batches,
    sum(period.lines) AS lines,
    sum(period.failed) AS failed,
    sum(period.reused) AS reused,
    sum(period.input_tokens) AS input_tokens,
    sum(period.cached_tokens) AS cached_tokens,
    sum(period.output_tokens) AS output_tokens,
    sum(period.reasoning_tokens) AS reasoning_tokens,
    sum(period.cost) AS cost
FROM period
WHERE %(after_period)s::date IS NULL
   OR (period.first_day, period.tenant) > (%(after_period)s::date, %(after_tenant)s::text)
GROUP BY period.tenant, period.first_day
ORDER BY period.first_day, period.tenant
LIMIT %(limit)s
