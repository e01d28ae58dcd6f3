-- read_holds: what is reserved of a batch's caps. `reserved`: for requests in flight of live workers. `unconfirmed`: for
-- requests that may have been charged, though no answer says so: of lost workers, of time-outs. No locks.
SELECT
    least(coalesce(sum(h.cost) FILTER (WHERE h.live), 0), 9223372036854775807)::bigint AS reserved_cost,
    least(coalesce(sum(h.tokens) FILTER (WHERE h.live), 0), 9223372036854775807)::bigint AS reserved_tokens,
    least(coalesce(sum(h.cost) FILTER (WHERE NOT h.live), 0), 9223372036854775807)::bigint AS unconfirmed_cost,
    least(coalesce(sum(h.tokens) FILTER (WHERE NOT h.live), 0), 9223372036854775807)::bigint AS unconfirmed_tokens
FROM (
    SELECT
        DISTINCT ON (each.holder)
        each.cost,
        each.tokens,
        each.busy
        AND EXISTS (SELECT FROM batchline.workers AS w WHERE w.id = each.worker_id AND w.lease_until >= now()) AS live
    FROM batchline.budget_holds AS each
    WHERE each.batch_id = %(batch)s
    ORDER BY each.holder, each.seq DESC
) AS h
