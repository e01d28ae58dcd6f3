"""Mistakes in limits: exact counts, for the right user."""

from mutants.mutant import Mutant

_GOVERNANCE = "src/batchline/store/sql/governance"
_LIMITS = ("tests/store/test_limits.py",)
_FLOOD = ("tests/api/test_one_users_flood_refuses_nobody_else.py",)

LIMITS = (
    Mutant(
        "time of a budget is given away that begins at any time",
        "src/batchline/store/functions/lease_rates_v1.sql",
        "        IF starts > at + horizon THEN\n",
        "        IF false THEN\n",
        ("tests/store/test_rate_budgets.py",),
    ),
    Mutant(
        "a call that has waited for the lock sets the clock back",
        "src/batchline/store/functions/lease_rates_v1.sql",
        "latest_call CONSTANT interval := '1 min'",
        "latest_call CONSTANT interval := '0'",
        ("tests/store/test_rate_budgets.py",),
    ),
    Mutant(
        "two submissions count at the same time",
        f"{_GOVERNANCE}/lock_limits.sql",
        " FOR NO KEY UPDATE",
        "",
        _LIMITS,
    ),
    Mutant(
        "pending children of a namesake in another tenant count",
        f"{_GOVERNANCE}/measure_limits.sql",
        "    FROM batchline.current_batches\n    WHERE tenant = %(tenant)s\n      AND submitted_by",
        "    FROM batchline.current_batches\n    WHERE submitted_by",
        _LIMITS,
    ),
    Mutant(
        "finished children count as pending",
        f"{_GOVERNANCE}/measure_limits.sql",
        "sum(total - completed - failed)",
        "sum(total)",
        _LIMITS,
    ),
    Mutant(
        "an expired exemption still counts",
        f"{_GOVERNANCE}/measure_limits.sql",
        " AND expires_at > clock_timestamp()",
        "",
        _LIMITS,
    ),
    Mutant(
        "an exemption that ended during the wait for the lock still counts",
        f"{_GOVERNANCE}/measure_limits.sql",
        "expires_at > clock_timestamp()",
        "expires_at > now()",
        _LIMITS,
    ),
    Mutant(
        "limits of a namesake in another tenant apply",
        f"{_GOVERNANCE}/measure_limits.sql",
        "AS o ON o.tenant = %(tenant)s AND o.user_id = %(user)s",
        "AS o ON o.user_id = %(user)s",
        _LIMITS,
    ),
    Mutant(
        "a flood of one user uses up the limit of all",
        f"{_GOVERNANCE}/count_request.sql",
        "WHERE mine.requests <= %(share)s AND mine.kind <> 'decision'",
        "WHERE %(share)s::integer IS NOT NULL AND mine.kind <> 'decision'",
        (*_FLOOD, *_LIMITS),
    ),
    Mutant(
        "load from other users refuses decisions",
        f"{_GOVERNANCE}/count_request.sql",
        " AND mine.kind <> 'decision'",
        "",
        (*_FLOOD, *_LIMITS),
    ),
    Mutant(
        "one batch more than the limit fits",
        "src/batchline/governance/limits.py",
        "if parents and now.parents + parents > max_parents:",
        "if parents and now.parents + parents > max_parents + 1:",
        _LIMITS,
    ),
    Mutant(
        "one child more than the limit fits",
        "src/batchline/governance/limits.py",
        "if now.children + children > max_children:",
        "if now.children + children > max_children + 1:",
        _LIMITS,
    ),
    Mutant(
        "an exempt user is not held to the global limit",
        "src/batchline/governance/limits.py",
        "if now.all_parents + parents > limits.max_pending_parents and not decisions:",
        "if now.all_parents + parents > limits.max_pending_parents and not (decisions or now.exempt):",
        _LIMITS,
    ),
    Mutant(
        "a request_id of another tenant is replayed",
        f"{_GOVERNANCE}/find_request.sql",
        "WHERE tenant = %(tenant)s AND user_id",
        "WHERE %(tenant)s::text IS NOT NULL AND user_id",
        ("tests/store/test_operations_submit.py",),
    ),
)
