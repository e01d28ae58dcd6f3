"""Mistakes with asynchronous providers: each makes a second task, too many tasks, or loses one."""

from mutants.mutant import Mutant

_FUNCTIONS = "src/batchline/store/functions"
_PROVIDER = "src/batchline/executors/provider.py"
_STORE = ("tests/store/test_providers.py",)
_EXECUTOR = ("tests/unit/test_provider_executor.py",)

PROVIDERS = (
    Mutant(
        "lines of a lost worker are not looked up at the provider",
        f"{_FUNCTIONS}/claim_returned_v2.sql",
        "coalesce(s.submission, 'interrupted')",
        "s.submission",
        _STORE,
    ),
    Mutant(
        "lines that a worker has released are not looked up at the provider",
        "src/batchline/store/sql/settle/release.sql",
        "coalesce(submission, 'interrupted')",
        "submission",
        _STORE,
    ),
    Mutant(
        "a deferral forgets that a submission was interrupted",
        f"{_FUNCTIONS}/record_verdicts_v2.sql",
        "WHEN 4 THEN 'unknown' WHEN 3 THEN s.submission WHEN 5",
        "WHEN 4 THEN 'unknown' WHEN 5",
        _STORE,
    ),
    Mutant(
        "two claims at once both take the last room for tasks",
        f"{_FUNCTIONS}/task_room_v1.sql",
        "PERFORM pg_advisory_xact_lock(",
        "PERFORM (",
        _STORE,
    ),
    Mutant(
        "lines that are being submitted do not count as tasks",
        f"{_FUNCTIONS}/task_room_v1.sql",
        "WHERE s.worker_id IS NOT NULL AND s.task_id IS NULL",
        "WHERE false",
        _STORE,
    ),
    Mutant(
        "a held line is submitted again",
        _PROVIDER,
        "if chosen.recovery is Recovery.HOLD:",
        "if False:",
        _EXECUTOR,
    ),
    Mutant(
        "a lost answer is another attempt",
        _PROVIDER,
        "if not isinstance(answer, Answer) or answer.status >= 500 or answer.status in _UNSURE:",
        "if not isinstance(answer, Answer):",
        _EXECUTOR,
    ),
    Mutant(
        "a rate limit gives up a key that may have a task",
        _PROVIDER,
        "            if item.claim.submission is not None:\n                # Another",
        "            if False:\n                # Another",
        _EXECUTOR,
    ),
    Mutant(
        "a search that finds nothing is believed at once",
        _PROVIDER,
        'if item.claim.submission == "interrupted" else None',
        "if False else None",
        _EXECUTOR,
    ),
    Mutant(
        "a task that is not known yet has vanished",
        _PROVIDER,
        "if now - first < chosen.recheck:",
        "if False:",
        _EXECUTOR,
    ),
    Mutant(
        "the tasks of a batch that was deleted are not cancelled",
        "src/batchline/store/sql/batches/delete_batch.sql",
        "WHERE span.task_id IS NOT NULL",
        "WHERE false",
        ("tests/store/test_deletion.py",),
    ),
    Mutant(
        "a task that is accepted after the deletion of its batch is not cancelled",
        "src/batchline/store/spans.py",
        "        await _abandon(session, late)",
        "        pass",
        ("tests/store/test_deletion.py",),
    ),
    Mutant(
        "a drain never ends while held lines fill the limit of tasks",
        "src/batchline/worker/drain.py",
        "if stuck and await self._held_up(before):",
        "if False:",
        ("tests/worker/test_providers.py",),
    ),
    Mutant(
        "the tasks of a batch that was ended are not cancelled",
        f"{_FUNCTIONS}/conclude_now_v2.sql",
        "WHERE s.id = ANY (locked) AND s.task_id IS NOT NULL\n    ON CONFLICT",
        "WHERE false\n    ON CONFLICT",
        ("tests/worker/test_providers.py",),
    ),
)
