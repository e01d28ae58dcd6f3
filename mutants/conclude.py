"""Mistakes in concluding, freezing and releasing."""

from mutants.mutant import Mutant

_FUNCTIONS = "src/batchline/store/functions"
_SETTLE = ("tests/store/test_settle.py",)
_RELEASE = ("tests/store/test_claim.py", "tests/worker/test_reconciler.py")

CONCLUDE = (
    Mutant(
        "lines of a chunk that was never submitted lose an attempt",
        f"{_FUNCTIONS}/conclude_now_v2.sql",
        " AND s.id <> ALL (unsent)",
        "",
        ("tests/store/test_provider_chunks.py",),
    ),
    Mutant(
        "a batch is concluded while a settle holds one of its spans",
        f"{_FUNCTIONS}/conclude_now_v2.sql",
        "          s.id NOT IN (SELECT unnest(locked))\n          OR EXISTS",
        "          EXISTS",
        _SETTLE,
    ),
    Mutant(
        "a batch is concluded while a live worker holds its lines",
        f"{_FUNCTIONS}/conclude_now_v2.sql",
        "w.lease_until >= now())",
        "w.lease_until >= now() + interval '5 seconds')",
        _SETTLE,
    ),
    Mutant(
        "two workers conclude a batch side by side",
        f"{_FUNCTIONS}/conclude_now_v2.sql",
        "AND b.finalizing_at IS NULL\n    FOR NO KEY UPDATE;",
        "AND b.finalizing_at IS NULL;",
        _SETTLE,
    ),
    Mutant(
        "concluding waits for a settle that waits for it",
        f"{_FUNCTIONS}/conclude_now_v2.sql",
        "WHERE s.batch_id = batch FOR UPDATE SKIP LOCKED);",
        "WHERE s.batch_id = batch FOR UPDATE);",
        _SETTLE,
    ),
    Mutant(
        "a batch that is not closing is concluded",
        f"{_FUNCTIONS}/conclude_now_v2.sql",
        "(b.cancelling_at IS NOT NULL OR b.expiring_at IS NOT NULL) AND ",
        "",
        _SETTLE,
    ),
    Mutant(
        "spans of a frozen batch stay, and a late verdict changes it",
        f"{_FUNCTIONS}/conclude_now_v2.sql",
        "    DELETE FROM batchline.spans AS s WHERE s.id = ANY (locked);\n",
        "",
        _SETTLE,
    ),
    Mutant(
        "cursors of a cancelled batch stay for ever",
        f"{_FUNCTIONS}/conclude_now_v2.sql",
        "    DELETE FROM batchline.cursors AS c USING batchline.lanes AS n"
        " WHERE n.batch_id = batch AND c.lane_id = n.id;\n",
        "",
        _SETTLE,
    ),
    Mutant(
        "a cancelled batch forgets how far its lanes were claimed",
        f"{_FUNCTIONS}/conclude_now_v2.sql",
        "    SET next = c.next, total = c.total\n",
        "    SET next = n.next, total = c.total\n",
        _SETTLE,
    ),
    Mutant(
        "a frozen batch loses its count of failed lines",
        f"{_FUNCTIONS}/freeze_v1.sql",
        "        failed = c.failed,\n",
        "",
        _SETTLE,
    ),
    Mutant(
        "counters of a frozen batch stay beside its row",
        f"{_FUNCTIONS}/freeze_v1.sql",
        "    DELETE FROM batchline.counters WHERE batch_id = batch;\n",
        "",
        ("tests/store/test_settle.py", "tests/store/test_operations_retry.py"),
    ),
    Mutant(
        "a release uses an attempt, so its lines are sent under a new idempotency key",
        "src/batchline/store/sql/settle/release.sql",
        "SET worker_id = NULL,\n",
        "SET worker_id = NULL, attempt = s.attempt + 1,\n",
        _RELEASE,
    ),
    Mutant(
        "a release frees spans of other workers",
        "src/batchline/store/sql/settle/release.sql",
        "WHERE worker_id = %(worker)s AND (",
        "WHERE %(worker)s::uuid IS NOT NULL AND (",
        _RELEASE,
    ),
    Mutant(
        "a release of some spans frees all of them",
        "src/batchline/store/sql/settle/release.sql",
        " AND (%(spans)s::bigint[] IS NULL OR id = ANY (%(spans)s::bigint[]))",
        " AND (%(spans)s::bigint[] IS NULL OR true)",
        _RELEASE,
    ),
    Mutant(
        "a worker that leaves removes its name while it holds spans",
        f"{_FUNCTIONS}/leave_v1.sql",
        "    WHERE w.id = worker AND NOT EXISTS (SELECT FROM batchline.spans AS s WHERE s.worker_id = w.id);",
        "    WHERE w.id = worker;",
        ("tests/store/test_claim.py", "tests/worker/test_claimer.py", "tests/store/test_interleavings.py"),
    ),
    Mutant(
        "a pause keeps lanes open",
        "src/batchline/store/sql/batches/close.sql",
        "    SET open = false\n",
        "    SET open = n.open\n",
        ("tests/store/test_claim.py",),
    ),
    Mutant(
        "a batch that is finalizing can be cancelled",
        "src/batchline/store/sql/batches/close.sql",
        "      AND finalizing_at IS NULL\n",
        "",
        ("tests/store/test_finalize.py", "tests/store/test_settle.py"),
    ),
    Mutant(
        "a resume opens the lanes of a batch that waits for approval",
        "src/batchline/store/sql/batches/resume.sql",
        " AND batch.held_at IS NULL",
        "",
        ("tests/store/test_approvals.py",),
    ),
)
