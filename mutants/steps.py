"""Mistakes in steps: nothing runs ahead of its step, each begins once, an approval is for what was seen."""

from mutants.mutant import Mutant

_FUNCTIONS = "src/batchline/store/functions"
_SQL = "src/batchline/store/sql"
_STEPS = ("tests/store/test_steps.py",)
_STAGED = ("tests/store/test_staged_operations.py",)

STEPS = (
    Mutant(
        "a step ends before its last line",
        f"{_FUNCTIONS}/add_counts_v1.sql",
        "more_completed + more_failed = before.step_total",
        "more_completed + more_failed >= before.step_total - 1",
        _STEPS,
    ),
    Mutant(
        "of two that begin a step, both do",
        f"{_FUNCTIONS}/begin_step_v1.sql",
        "    WHERE b.id = batch\n      AND b.next_step_at <= now()\n",
        "    WHERE b.id = batch\n",
        _STEPS,
    ),
    Mutant(
        "a paused batch begins its next step",
        f"{_FUNCTIONS}/begin_step_v1.sql",
        "      AND b.paused_at IS NULL AND b.held_at IS NULL\n",
        "      AND b.held_at IS NULL\n",
        _STEPS,
    ),
    Mutant(
        "a resume runs the rest of a sample that nobody has approved",
        f"{_FUNCTIONS}/end_step_v1.sql",
        "UPDATE batchline.batches AS b SET held_at = now() WHERE b.id = batch;",
        "UPDATE batchline.batches AS b SET paused_at = now() WHERE b.id = batch;",
        _STAGED,
    ),
    Mutant(
        "nobody begins a step after a crash",
        f"{_SQL}/claim/poll.sql",
        "least(deadline.at, maintenance.at, closing.at, step.at) <= now()",
        "least(deadline.at, maintenance.at, closing.at) <= now()",
        _STEPS,
    ),
    Mutant(
        "lines that reuse has put into spans run before their step",
        f"{_SQL}/steps/hold_back.sql",
        "SET available_at = '9999-12-31 00:00:00+00' FROM",
        "SET available_at = s.available_at FROM",
        _STEPS,
    ),
    Mutant(
        "a retry runs what was held back at once",
        f"{_SQL}/settle/put_back_unrun.sql",
        "CASE WHEN b.step_total IS NULL THEN now() ELSE '9999-12-31 00:00:00+00' END",
        "now()",
        _STEPS,
    ),
    Mutant(
        "a share of failures is one of all lines",
        f"{_FUNCTIONS}/pause_after_failures_v1.sql",
        "coalesce(c.step_total, c.total)",
        "c.total",
        _STEPS,
    ),
    Mutant(
        "an approval stays when children are added",
        f"{_SQL}/governance/append_children.sql",
        "(approval = 'approved' OR (approval = 'not_required' AND %(needs_approval)s))",
        "(approval = 'not_required' AND %(needs_approval)s)",
        _STAGED,
    ),
    Mutant(
        "the digest leaves the results out",
        f"{_FUNCTIONS}/operation_digest_v1.sql",
        "JOIN batchline.results AS r ON r.lane_id = n.id",
        "JOIN batchline.results AS r ON r.lane_id = n.id AND false",
        _STAGED,
    ),
    Mutant(
        "a dry run creates the batch",
        "src/batchline/governance/submissions.py",
        "            raise _RolledBack\n",
        "            pass\n",
        _STAGED,
    ),
)
