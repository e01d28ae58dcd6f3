-- operation_submitter: who submitted a governed batch, and the most that his keys may do now; none: all are revoked.
--
-- `anybody` is who calls a server without authentication, the one admin of the default tenant, if no key was ever
-- called so.
SELECT o.tenant, o.user_id, coalesce(k.role, 'admin'), k.role IS NULL AS alone
FROM batchline.operation_batches AS o
LEFT JOIN LATERAL (
    SELECT role
    FROM batchline.api_keys
    WHERE tenant = o.tenant AND name = o.user_id AND revoked_at IS NULL
    ORDER BY array_position(ARRAY['admin', 'approver', 'user'], role)
    LIMIT 1
) AS k ON true
WHERE o.batch_id = %(batch)s
  AND (
      k.role IS NOT NULL
      OR (
          o.user_id = %(anybody)s
          AND o.tenant = %(default_tenant)s
          AND NOT EXISTS (SELECT FROM batchline.api_keys AS past WHERE past.tenant = o.tenant AND past.name = o.user_id)
      )
  )
