"""Mistakes in finalizing: exactly one end for each batch."""

from mutants.mutant import Mutant

_BATCHES = "src/batchline/store/sql/batches"
_FINALIZE = ("tests/store/test_finalize.py",)
_BACKOFF = ("tests/worker/test_one_failing_finalization_holds_up_no_other.py",)

FINALIZE = (
    Mutant(
        "a finalizer that was replaced ends the batch",
        f"{_BATCHES}/finish_batch.sql",
        "WHERE b.id = %(batch)s AND b.finalizer = %(worker)s AND b.finalizing_at",
        "WHERE b.id = %(batch)s AND %(worker)s::uuid IS NOT NULL AND b.finalizing_at",
        _FINALIZE,
    ),
    Mutant(
        "a batch ends twice",
        f"{_BATCHES}/finish_batch.sql",
        "b.finalizing_at = %(finalizing_at)s AND b.ended_at IS NULL\n    RETURNING b.*",
        "b.finalizing_at = %(finalizing_at)s\n    RETURNING b.*",
        _FINALIZE,
    ),
    Mutant(
        "a cancelled batch ends as completed",
        f"{_BATCHES}/finish_batch.sql",
        "completed_at = CASE WHEN b.cancelling_at IS NULL AND b.expiring_at IS NULL THEN now() END",
        "completed_at = now()",
        _FINALIZE,
    ),
    Mutant(
        "a batch is taken from a finalizer that lives",
        f"{_BATCHES}/claim_finalizing.sql",
        "WHERE w.id = b.finalizer AND w.lease_until >= now())",
        "WHERE w.id = b.finalizer AND w.lease_until >= now() + interval '5 seconds')",
        _FINALIZE,
    ),
    Mutant(
        "two finalizers wait for one batch instead of taking two",
        f"{_BATCHES}/claim_finalizing.sql",
        "        LIMIT 1\n        FOR NO KEY UPDATE SKIP LOCKED",
        "        LIMIT 1\n        FOR NO KEY UPDATE",
        (*_FINALIZE, *_BACKOFF),
    ),
    Mutant(
        "a batch that failed is tried again without its back-off",
        f"{_BATCHES}/claim_finalizing.sql",
        "          AND (b.finalize_after IS NULL OR b.finalize_after <= now())\n",
        "",
        _BACKOFF,
    ),
    Mutant(
        "one tenant's batches are all finalized before another's",
        f"{_BATCHES}/claim_finalizing.sql",
        "ORDER BY name <= %(after_tenant)s, name",
        "ORDER BY %(after_tenant)s::text IS NULL, name",
        (*_BACKOFF, *_FINALIZE),
    ),
    Mutant(
        "a finalizer that was replaced lets go of its successor's batch",
        f"{_BATCHES}/yield_finalizing.sql",
        "WHERE id = %(batch)s AND finalizer = %(worker)s AND",
        "WHERE id = %(batch)s AND %(worker)s::uuid IS NOT NULL AND",
        _FINALIZE,
    ),
    Mutant(
        "a finalizer that was replaced puts off its successor's batch",
        f"{_BATCHES}/put_off_finalizing.sql",
        "WHERE b.id = %(batch)s AND b.finalizer = %(worker)s AND b.ended_at IS NULL",
        "WHERE b.id = %(batch)s AND %(worker)s::uuid IS NOT NULL AND b.ended_at IS NULL",
        (*_BACKOFF, *_FINALIZE),
    ),
    Mutant(
        "a file that does not match the counters is recorded",
        "src/batchline/batches/finalize.py",
        "        if found != expected:",
        "        if False and found != expected:",
        _FINALIZE,
    ),
)
