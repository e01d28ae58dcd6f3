"""Very large batches on PostgreSQL: one result for every line, whatever crashes on the way.

The names in `__all__` are the public API (docs/reference/python.md); everything else is internal.
"""

# As in `typing`, which is not imported for one constant.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from batchline.app.app_worker import AppWorker as AppWorker
    from batchline.app.batchline import Batchline as Batchline
    from batchline.app.models.openai_client import AsyncOpenAI as AsyncOpenAI
    from batchline.app.models.refusals import NotInBatch as NotInBatch
    from batchline.app.models.row_encoding import InvalidRow as InvalidRow
    from batchline.app.models.row_run import arun as arun
    from batchline.app.models.row_run import run as run
    from batchline.app.models.row_tables import Answers as Answers
    from batchline.app.models.row_work import RunPaused as RunPaused
    from batchline.app.progress import BatchProgress as BatchProgress
    from batchline.app.results import ItemError as ItemError
    from batchline.app.results import ItemResult as ItemResult
    from batchline.app.submitted_batch import SubmittedBatch as SubmittedBatch
    from batchline.operations.callbacks import EndedBatch as EndedBatch
    from batchline.operations.context import Context as Context
    from batchline.operations.errors import BatchClosed as BatchClosed
    from batchline.operations.errors import BatchlineError as BatchlineError
    from batchline.operations.errors import DatabaseUnavailable as DatabaseUnavailable
    from batchline.operations.errors import DuplicateKey as DuplicateKey
    from batchline.operations.errors import InvalidApp as InvalidApp
    from batchline.operations.errors import InvalidItem as InvalidItem
    from batchline.operations.errors import ItemFailed as ItemFailed
    from batchline.operations.outcomes import Fail as Fail
    from batchline.operations.outcomes import Parked as Parked
    from batchline.operations.outcomes import Retry as Retry

__version__ = "0.1.0"

# Imported when first used: `batchline --help` must not wait for them.
_HOMES = {
    "Answers": "batchline.app.models.row_tables",
    "AppWorker": "batchline.app.app_worker",
    "AsyncOpenAI": "batchline.app.models.openai_client",
    "BatchClosed": "batchline.operations.errors",
    "BatchProgress": "batchline.app.progress",
    "Batchline": "batchline.app.batchline",
    "BatchlineError": "batchline.operations.errors",
    "Context": "batchline.operations.context",
    "DatabaseUnavailable": "batchline.operations.errors",
    "DuplicateKey": "batchline.operations.errors",
    "EndedBatch": "batchline.operations.callbacks",
    "Fail": "batchline.operations.outcomes",
    "InvalidApp": "batchline.operations.errors",
    "InvalidItem": "batchline.operations.errors",
    "InvalidRow": "batchline.app.models.row_encoding",
    "ItemError": "batchline.app.results",
    "ItemFailed": "batchline.operations.errors",
    "ItemResult": "batchline.app.results",
    "NotInBatch": "batchline.app.models.refusals",
    "Parked": "batchline.operations.outcomes",
    "Retry": "batchline.operations.outcomes",
    "RunPaused": "batchline.app.models.row_work",
    "SubmittedBatch": "batchline.app.submitted_batch",
    "arun": "batchline.app.models.row_run",
    "run": "batchline.app.models.row_run",
}
# Without what needs an extra: `from batchline import *` works without it.
__all__ = ["__version__", *(name for name in _HOMES if name != "AsyncOpenAI")]  # noqa: PLE0604


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'batchline' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
