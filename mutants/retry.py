"""Mistakes in retries: each line is put back once, and every end has its own files."""

from mutants.mutant import Mutant

_SQL = "src/batchline/store/sql"
_RETRY = ("tests/store/test_retry.py",)

RETRY = (
    Mutant(
        "two retries run at once",
        f"{_SQL}/batches/lock_ordinary_batch.sql",
        "FOR NO KEY UPDATE",
        "",
        _RETRY,
    ),
    Mutant(
        "the files of an earlier end are those of the next one",
        f"{_SQL}/batches/finish_batch.sql",
        "b.finalizing_at = %(finalizing_at)s AND",
        "b.finalizing_at IS NOT NULL AND %(finalizing_at)s::timestamptz IS NOT NULL AND",
        _RETRY,
    ),
    Mutant(
        "lines that are left out are waited for",
        "src/batchline/store/functions/add_counts_v1.sql",
        "= before.total + more_lines - before.left_out;",
        "= before.total + more_lines;",
        _RETRY,
    ),
    Mutant(
        "a retry of failed lines runs cancelled ones, too",
        f"{_SQL}/batches/reopen_batch.sql",
        "drained = n.drained OR lane.left_out > 0",
        "drained = n.drained",
        _RETRY,
    ),
    Mutant(
        "a retry forgets which lines a provider may have accepted",
        f"{_SQL}/settle/put_back_unrun.sql",
        "        part.submission,\n        CASE",
        "        NULL,\n        CASE",
        _RETRY,
    ),
    Mutant(
        "a retry does not know that a lost worker may have submitted lines",
        "src/batchline/store/functions/conclude_now_v1.sql",
        "AND (s.submission IS NOT NULL OR s.worker_id IS NOT NULL)",
        "AND s.submission IS NOT NULL",
        _RETRY,
    ),
    Mutant(
        "the input of a batch that is retried can be deleted",
        f"{_SQL}/files/keep_input.sql",
        "FOR KEY SHARE",
        "",
        _RETRY,
    ),
    Mutant(
        "deleting a batch leaves the files of its earlier ends",
        f"{_SQL}/batches/delete_batch.sql",
        "earlier_files || ARRAY[output_file_id, error_file_id] AS made",
        "ARRAY[output_file_id, error_file_id] AS made",
        _RETRY,
    ),
)
