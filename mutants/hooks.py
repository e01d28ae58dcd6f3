"""Mistakes in completion hooks, and in the repair of batches that were never frozen."""

from mutants.mutant import Mutant

_SQL = "src/batchline/store/sql/hooks"
_PROCESS = "src/batchline/hooks/process.py"
_REPAIR = "src/batchline/store/functions/freeze_finished_v1.sql"
_DELIVERIES = ("tests/store/test_hooks.py",)
_PROCESSES = ("tests/worker/test_hook_process.py",)
_UNFROZEN = ("tests/store/test_unfrozen.py",)

HOOKS = (
    Mutant(
        "a worker takes deliveries to hooks that it does not have",
        f"{_SQL}/take_hook_delivery.sql",
        "WHERE o.hook = h.name\n",
        "WHERE h.name IS NOT NULL\n",
        _DELIVERIES,
    ),
    Mutant(
        "two workers wait for each other's delivery instead of skipping it",
        f"{_SQL}/take_hook_delivery.sql",
        "FOR UPDATE SKIP LOCKED",
        "FOR UPDATE",
        _DELIVERIES,
    ),
    Mutant(
        "a worker that lost its lease on a delivery records the outcome",
        f"{_SQL}/settle_hook_delivery.sql",
        " AND attempts = %(attempt)s AND",
        " AND %(attempt)s::integer IS NOT NULL AND",
        _DELIVERIES,
    ),
    Mutant(
        "a delivery that another process runs is run a second time",
        f"{_SQL}/request_hooks.sql",
        " AND (d.running_until IS NULL OR d.running_until <= now())",
        "",
        _DELIVERIES,
    ),
    Mutant(
        "a hook gets the environment of the worker",
        _PROCESS,
        "env=dict(environment)",
        "env={**os.environ, **environment}",
        _PROCESSES,
    ),
    Mutant(
        "what a hook has started outlives it",
        _PROCESS,
        "os.killpg(process.pid, signal.SIGKILL)",
        "os.kill(process.pid, signal.SIGKILL)",
        _PROCESSES,
    ),
    Mutant(
        "a batch with an unfinished line is frozen by the repair",
        _REPAIR,
        "\n      AND NOT EXISTS (SELECT FROM batchline.spans AS s WHERE s.batch_id = batch)",
        "",
        _UNFROZEN,
    ),
    Mutant(
        "the repair decides without the lock of the batch",
        _REPAIR,
        "\n    FOR NO KEY UPDATE",
        "",
        _UNFROZEN,
    ),
)
