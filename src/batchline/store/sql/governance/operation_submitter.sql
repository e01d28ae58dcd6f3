-- operation_submitter: the submitter of a governed batch, with the highest role among their current keys. No row if all
-- their keys are revoked.
--
-- `anybody` is the user name of callers of a server without authentication. It is the only admin of the default tenant,
-- unless a key of that name ever existed.
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
