"""Mistakes in authentication, and in keeping tenants apart."""

from mutants.mutant import Mutant

_SQL = "src/batchline/store/sql"
_KEYS = ("tests/store/test_keys.py", "tests/api/test_auth.py")
_TENANTS = ("tests/api/test_batches.py", "tests/api/test_files.py")

ACCESS = (
    Mutant(
        "a revoked key still works",
        f"{_SQL}/governance/find_key.sql",
        " AND revoked_at IS NULL",
        "",
        _KEYS,
    ),
    Mutant(
        "a server without keys answers pages of other sites",
        "src/batchline/api/auth.py",
        "    _refuse_other_sites(request)\n",
        "",
        _KEYS,
    ),
    Mutant(
        "a request without a key is answered",
        "src/batchline/api/auth.py",
        '        raise _unauthorized("Incorrect API key provided.", "invalid_api_key")',
        "        return Actor(DEFAULT_TENANT, ANYBODY, Role.USER)",
        _KEYS,
    ),
    Mutant(
        "a tenant reads another tenant's batch",
        f"{_SQL}/batches/tenant_batch.sql",
        "id = %(batch)s AND b.tenant = %(tenant)s AND",
        "id = %(batch)s AND %(tenant)s::text IS NOT NULL AND",
        _TENANTS,
    ),
    Mutant(
        "governed batches are visible to every user of the tenant",
        f"{_SQL}/batches/tenant_batch.sql",
        " AND b.submitted_by IS NULL",
        "",
        ("tests/api/test_operations.py", *_TENANTS),
    ),
    Mutant(
        "a tenant lists another tenant's batches",
        f"{_SQL}/batches/list_batches.sql",
        "WHERE tenant = %(tenant)s",
        "WHERE %(tenant)s::text IS NOT NULL",
        _TENANTS,
    ),
    Mutant(
        "a tenant reads another tenant's file",
        f"{_SQL}/files/visible_file.sql",
        "  AND tenant = %(tenant)s\n",
        "  AND %(tenant)s::text IS NOT NULL\n",
        _TENANTS,
    ),
    Mutant(
        "a tenant deletes another tenant's file",
        f"{_SQL}/files/delete_file.sql",
        "      AND tenant = %(tenant)s\n",
        "      AND %(tenant)s::text IS NOT NULL\n",
        _TENANTS,
    ),
    Mutant(
        "a tenant's Idempotency-Key replays another tenant's batch",
        f"{_SQL}/batches/find_idempotency_key.sql",
        "WHERE tenant = %(tenant)s AND scope",
        "WHERE %(tenant)s::text IS NOT NULL AND scope",
        _TENANTS,
    ),
    Mutant(
        "a user sees another user's governed batch",
        "src/batchline/governance/access.py",
        "if batch is None or (actor.role is Role.USER and batch.user_id != actor.user):",
        "if batch is None:",
        ("tests/api/test_operations.py", "tests/store/test_operations_submit.py"),
    ),
    Mutant(
        "an approver changes another user's batch",
        "src/batchline/governance/access.py",
        "if batch.user_id != actor.user and not actor.role.administers:",
        "if batch.user_id != actor.user and actor.role is Role.USER:",
        ("tests/store/test_approvals.py", "tests/api/test_operations.py"),
    ),
)
