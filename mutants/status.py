"""Mistakes in what is counted, what is deleted with a batch, and when a worker polls and stops."""

from mutants.mutant import Mutant

_COUNTS = ("tests/store/test_item_counts.py",)
_DELETION = ("tests/store/test_deletion.py",)
_UNFINISHED = "src/batchline/store/functions/unfinished_v1.sql"
_BATCH = "src/batchline/model/batch.py"

STATUS = (
    Mutant(
        "a provider's task counts as an item that waits",
        _UNFINISHED,
        " AND s.task_id IS NULL\n",
        "\n",
        _COUNTS,
    ),
    Mutant(
        "a retry that is due counts as retrying",
        _UNFINISHED,
        "FILTER (WHERE waiting.available_at > now() AND waiting.available_at < held_back) AS retrying",
        "FILTER (WHERE waiting.available_at < held_back) AS retrying",
        _COUNTS,
    ),
    Mutant(
        "items that never ran are pending in a cancelled batch",
        _BATCH,
        "pending=self.returned + (0 if cancelling or expiring else unclaimed)",
        "pending=self.returned + (0 if expiring else unclaimed)",
        _COUNTS,
    ),
    Mutant(
        "a frozen batch counts items as in progress",
        _BATCH,
        "claimed = self.finished if self.finalizing_at is not None else self.claimed",
        "claimed = self.claimed",
        _COUNTS,
    ),
    Mutant(
        "a running batch is deleted without force",
        "src/batchline/store/sql/batches/delete_batch.sql",
        " AND (ended_at IS NOT NULL OR %(force)s::boolean)",
        " AND %(force)s::boolean IS NOT NULL",
        _DELETION,
    ),
    Mutant(
        "an input that another batch uses is deleted",
        "src/batchline/store/sql/files/delete_unused_input.sql",
        " AND NOT EXISTS (SELECT FROM batchline.batches AS b WHERE b.file_id = f.id)",
        "",
        _DELETION,
    ),
    Mutant(
        "a verdict on an item of a deleted batch fails the whole settle",
        "src/batchline/store/functions/add_counts_v1.sql",
        "    IF NOT FOUND THEN\n        RETURN;\n    END IF;\n",
        "",
        _DELETION,
    ),
    Mutant(
        "results that are settled during the clean-up of their batch are left over",
        "src/batchline/store/sql/maintenance/drop_deleted_lanes.sql",
        "      AND NOT EXISTS (SELECT FROM any_span)\n",
        "",
        ("tests/store/test_interleavings.py",),
    ),
    Mutant(
        "a claim that finds work does not shorten the pause that is under way",
        "src/batchline/worker/poller.py",
        "            self._pause.reschedule(min(ends, self._pause.when() or ends))\n",
        "            assert ends\n",
        ("tests/worker/test_poller.py",),
    ),
    Mutant(
        "claims that follow each other put off the next poll",
        "src/batchline/worker/poller.py",
        "self._pause.reschedule(min(ends, self._pause.when() or ends))",
        "self._pause.reschedule(ends)",
        ("tests/worker/test_poller.py",),
    ),
    Mutant(
        "a worker claims more than --max-items",
        "src/batchline/worker/item_budget.py",
        "min(wanted, self._left)",
        "wanted",
        ("tests/worker/test_item_budget.py",),
    ),
)
