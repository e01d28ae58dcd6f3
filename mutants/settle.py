"""Mistakes in settles: which verdict counts, and how often."""

from mutants.mutant import Mutant

_FUNCTIONS = "src/batchline/store/functions"
_SETTLE = ("tests/store/test_settle.py",)
_FAILURES = ("tests/store/test_failures.py",)
_PARKED = ("tests/worker/test_parked.py", "tests/store/test_claim.py")

SETTLE = (
    Mutant(
        "spans are not locked before verdicts on them count",
        f"{_FUNCTIONS}/record_verdicts_v1.sql",
        "    ORDER BY s.id\n    FOR UPDATE\n",
        "    ORDER BY s.id\n",
        _SETTLE,
    ),
    Mutant(
        "spans are locked in any order",
        f"{_FUNCTIONS}/record_verdicts_v1.sql",
        "    ORDER BY s.id\n    FOR UPDATE\n",
        "    FOR UPDATE\n",
        _SETTLE,
    ),
    Mutant(
        "a second verdict on a line counts too",
        f"{_FUNCTIONS}/record_verdicts_v1.sql",
        "WHERE s.outstanding @> v.ordinals AND (v.kind < 2 OR s.worker_id = worker)",
        "WHERE (v.kind < 2 OR s.worker_id = worker)",
        _SETTLE,
    ),
    Mutant(
        "a worker that lost its lease puts lines back that another one runs",
        f"{_FUNCTIONS}/record_verdicts_v1.sql",
        "s.outstanding @> v.ordinals AND (v.kind < 2 OR s.worker_id = worker)",
        "s.outstanding @> v.ordinals",
        _SETTLE,
    ),
    Mutant(
        "a true answer of a worker that lost its lease is thrown away",
        f"{_FUNCTIONS}/record_verdicts_v1.sql",
        "AND (v.kind < 2 OR s.worker_id = worker)",
        "AND s.worker_id = worker",
        _SETTLE,
    ),
    Mutant(
        "a retry is sent under the idempotency key of the attempt before",
        f"{_FUNCTIONS}/record_verdicts_v1.sql",
        "attempt + CASE kind WHEN 2 THEN 1 ELSE 0 END",
        "attempt",
        _SETTLE,
    ),
    Mutant(
        "a deferral uses an attempt",
        f"{_FUNCTIONS}/record_verdicts_v1.sql",
        "attempt + CASE kind WHEN 2 THEN 1 ELSE 0 END",
        "attempt + 1",
        _SETTLE,
    ),
    Mutant(
        "a retry is due at once",
        f"{_FUNCTIONS}/record_verdicts_v1.sql",
        "        now() + make_interval(secs => delay),\n",
        "        now(),\n",
        _SETTLE,
    ),
    Mutant(
        "the failed attempts of a line are not remembered",
        f"{_FUNCTIONS}/record_verdicts_v1.sql",
        "AS i (no, ordinal, error_code, message, upstream_seconds, settling_seconds)\n"
        "    JOIN accepted AS a ON a.no = i.no",
        "AS i (no, ordinal, error_code, message, upstream_seconds, settling_seconds)\n"
        "    JOIN accepted AS a ON a.no = i.no AND a.kind < 2",
        _SETTLE,
    ),
    Mutant(
        "two settles of one batch count from the same counters",
        f"{_FUNCTIONS}/add_counts_v1.sql",
        "    PERFORM FROM batchline.batches AS b WHERE b.id = batch FOR NO KEY UPDATE;\n",
        "",
        _SETTLE,
    ),
    Mutant(
        "the counters before the new ones are kept",
        f"{_FUNCTIONS}/add_counts_v1.sql",
        "        DELETE FROM batchline.counters AS c WHERE c.batch_id = batch AND c.seq = before.seq;\n",
        "",
        _SETTLE,
    ),
    Mutant(
        "failed lines are counted as often as completed ones",
        f"{_FUNCTIONS}/add_counts_v1.sql",
        "before.failed + more_failed,",
        "before.failed + more_completed,",
        _SETTLE,
    ),
    Mutant(
        "cached tokens are those of the last settle only",
        f"{_FUNCTIONS}/add_counts_v1.sql",
        "before.cached_tokens + more_cached_tokens,",
        "more_cached_tokens,",
        _SETTLE,
    ),
    Mutant(
        "finalizing begins with one line unfinished",
        f"{_FUNCTIONS}/add_counts_v1.sql",
        "finished := before.completed + before.failed + more_completed + more_failed = before.total;",
        "finished := before.completed + before.failed + more_completed + more_failed >= before.total - 1;",
        _SETTLE,
    ),
    Mutant(
        "a closing batch is concluded before its refused verdicts are sent again",
        f"{_FUNCTIONS}/settle_v1.sql",
        "IF closing AND NOT finished AND tally.all_accepted AND tally.alone THEN",
        "IF closing AND NOT finished AND tally.alone THEN",
        _SETTLE,
    ),
    Mutant(
        "settles lock batches in any order",
        f"{_FUNCTIONS}/settle_v1.sql",
        "        ORDER BY batch_id\n",
        "        ORDER BY groups\n",
        _SETTLE,
    ),
    Mutant(
        "ends of ordinary lines are in the audit log",
        f"{_FUNCTIONS}/settle_v1.sql",
        "IF counted.governed AND ended > 0 THEN",
        "IF ended > 0 THEN",
        ("tests/store/test_audit.py", "tests/store/test_settle.py"),
    ),
    Mutant(
        "late verdicts on children are in the audit log",
        f"{_FUNCTIONS}/settle_v1.sql",
        "WHERE no = ANY (tally.groups)",
        "WHERE no IS NOT NULL",
        ("tests/store/test_audit.py", "tests/store/test_settle.py"),
    ),
    Mutant(
        "any worker may park a line",
        "src/batchline/store/sql/settle/park.sql",
        "WHERE s.id = ANY (%(spans)b) AND s.worker_id = %(worker)s",
        "WHERE s.id = ANY (%(spans)b) AND %(worker)s::uuid IS NOT NULL",
        _PARKED,
    ),
    Mutant(
        "a line that was settled already is parked",
        "src/batchline/store/sql/settle/park.sql",
        "s.outstanding * p.ordinals AS ordinals",
        "p.ordinals AS ordinals",
        _PARKED,
    ),
    Mutant(
        "failures of one cause are those of the last settle only",
        f"{_FUNCTIONS}/count_causes_v1.sql",
        "SELECT batch, key, failed + more FROM before",
        "SELECT batch, key, more FROM before",
        _FAILURES,
    ),
    Mutant(
        "counts by cause are read before the batch is locked",
        f"{_FUNCTIONS}/count_causes_v1.sql",
        "WHERE b.id = batch FOR NO KEY UPDATE;",
        "WHERE b.id = batch;",
        _FAILURES,
    ),
    Mutant(
        "a batch lists any number of causes",
        f"{_FUNCTIONS}/count_causes_v1.sql",
        "WHERE listed + new.nth <= CASE WHEN new.failed > 0 THEN 100 ELSE 50 END;",
        ";",
        _FAILURES,
    ),
    Mutant(
        "failures of a group that was refused are counted by cause",
        f"{_FUNCTIONS}/count_causes_v1.sql",
        "FROM unnest(counted) AS no\n",
        "FROM generate_series(1, cardinality(causes)) AS no\n",
        _FAILURES,
    ),
    Mutant(
        "a batch that has failed too often is paused, but its lanes stay open",
        f"{_FUNCTIONS}/settle_v1.sql",
        "        IF paused OR counted.left_out THEN\n",
        "        IF counted.left_out THEN\n",
        _FAILURES,
    ),
    Mutant(
        "a continued batch is paused again for the same failures",
        f"{_FUNCTIONS}/note_failures_v1.sql",
        "        failed_before = excluded.failed_before,\n",
        "",
        _FAILURES,
    ),
    Mutant(
        "a resume does not wait for a settle that counts failures",
        f"{_FUNCTIONS}/note_failures_v1.sql",
        "WHERE b.id = batch FOR NO KEY UPDATE;",
        "WHERE b.id = batch;",
        _FAILURES,
    ),
    Mutant(
        "answers do not keep a batch from being paused for failing alike",
        f"{_FUNCTIONS}/pause_after_failures_v1.sql",
        " AND facts.completed = 0 THEN",
        " THEN",
        _FAILURES,
    ),
)
