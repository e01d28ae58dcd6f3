"""Very large batches on PostgreSQL: one result for every line, whatever crashes on the way.

The names in `__all__` are the public API; everything else is internal. To run items in your own way, write an
`Executor`: it takes an `Item` and returns a verdict.
"""

# As in `typing`, which is not imported for one constant.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from batchline.batches.output import answered_line as answered_line
    from batchline.batches.output import failed_line as failed_line
    from batchline.executors.executor import Executor as Executor
    from batchline.model import Completed as Completed
    from batchline.model import Deferred as Deferred
    from batchline.model import Failed as Failed
    from batchline.model import Item as Item
    from batchline.model import Retried as Retried
    from batchline.model import SubmissionUnknown as SubmissionUnknown
    from batchline.model import TaskParked as TaskParked
    from batchline.model import TimedOut as TimedOut
    from batchline.model import Usage as Usage
    from batchline.model import Verdict as Verdict

__version__ = "0.1.0"

# Imported when first used: `batchline --help` must not wait for them.
_HOMES = {
    "Completed": "batchline.model",
    "Deferred": "batchline.model",
    "Executor": "batchline.executors.executor",
    "Failed": "batchline.model",
    "Item": "batchline.model",
    "TaskParked": "batchline.model",
    "Retried": "batchline.model",
    "SubmissionUnknown": "batchline.model",
    "TimedOut": "batchline.model",
    "Usage": "batchline.model",
    "Verdict": "batchline.model",
    "answered_line": "batchline.batches.output",
    "failed_line": "batchline.batches.output",
}
__all__ = ["__version__", *_HOMES]  # noqa: PLE0604


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'batchline' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
