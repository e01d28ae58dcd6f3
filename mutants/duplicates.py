"""Mistakes with duplicates: who gets which answer, what is counted, and when the batch ends."""

from mutants.mutant import Mutant

_FUNCTIONS = "src/batchline/store/functions"
_SQL = "src/batchline/store/sql"
_TESTS = ("tests/store/test_duplicates.py",)

DUPLICATES = (
    Mutant(
        "lines with the same hash are taken for identical in all lanes",
        f"{_FUNCTIONS}/arrange_lines_v1.sql",
        "PARTITION BY line.lane_id, line.hash, line.proof ORDER BY",
        "PARTITION BY line.lane_id ORDER BY",
        _TESTS,
    ),
    Mutant(
        "a reused answer is no leader",
        f"{_FUNCTIONS}/arrange_lines_v1.sql",
        "ORDER BY reused.line_no IS NULL, line.ordinal",
        "ORDER BY line.ordinal",
        _TESTS,
    ),
    Mutant(
        "a batch with nothing to send has no step that is due",
        f"{_FUNCTIONS}/arrange_lines_v1.sql",
        "            next_step_at = CASE WHEN b.completed = b.total - held THEN now() END\n",
        "            next_step_at = NULL\n",
        _TESTS,
    ),
    Mutant(
        "a paused batch answers its duplicates",
        f"{_FUNCTIONS}/answer_duplicates_v1.sql",
        "(c.next_step_at <= now() AND c.paused_at IS NULL)",
        "c.next_step_at <= now()",
        _TESTS,
    ),
    Mutant(
        "a call copies answers of any size",
        f"{_FUNCTIONS}/answer_duplicates_v1.sql",
        "        WHERE ready.before < max_bytes\n",
        "        WHERE true\n",
        _TESTS,
    ),
    Mutant(
        "copied failures are not counted by cause",
        f"{_FUNCTIONS}/answer_duplicates_v1.sql",
        "    IF copied.failed > 0 THEN\n",
        "    IF false THEN\n",
        _TESTS,
    ),
    Mutant(
        "duplicates that are answered early are not counted as begun",
        f"{_FUNCTIONS}/answer_duplicates_v1.sql",
        "step_total = nullif(b.step_total + answered + released, facts.total)",
        "step_total = nullif(b.step_total + released, facts.total)",
        _TESTS,
    ),
    Mutant(
        "lanes of a batch that ends without lines that were left out stay open",
        f"{_FUNCTIONS}/answer_duplicates_v1.sql",
        "    IF counted.left_out THEN\n",
        "    IF false THEN\n",
        _TESTS,
    ),
    Mutant(
        "a copied line that has its error first is copied with the leader's custom_id",
        f"{_FUNCTIONS}/copied_line_v1.sql",
        """, nullif(position(',"error":' IN output), 0))""",
        ")",
        _TESTS,
    ),
    Mutant(
        "a retry sends duplicates",
        f"{_SQL}/steps/hold_duplicates.sql",
        "attempts_before, submission, '9999-12-31 00:00:00+00' FROM held",
        "attempts_before, submission, now() FROM held",
        _TESTS,
    ),
    Mutant(
        "a retry counts duplicates as answered that it has put back",
        f"{_SQL}/steps/hold_duplicates.sql",
        "SET duplicates = counted.answered,",
        "SET duplicates = b.duplicates,",
        _TESTS,
    ),
    Mutant(
        "an expired batch keeps no answers for its duplicates",
        "src/batchline/batches/maintenance.py",
        "        await steps.answer_early(session, batch_id)\n",
        "",
        _TESTS,
    ),
    Mutant(
        "lines that can be claimed count as in progress",
        f"{_FUNCTIONS}/unfinished_v2.sql",
        "    lane.claimed - ended - span.retrying - span.in_progress\n",
        "    0\n",
        _TESTS,
    ),
    Mutant(
        "lines are not put in the order of their prompts",
        f"{_FUNCTIONS}/arrange_lines_v1.sql",
        "ORDER BY prompt.key, a.ordinal)",
        "ORDER BY a.ordinal)",
        _TESTS,
    ),
)
