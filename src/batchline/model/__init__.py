"""The domain's nouns as frozen types, one module per subject. Imports nothing of Batchline.

What passes through a worker thousands of times per second (items and verdicts) are msgspec structs, which
cost a tenth of a frozen dataclass to make. Start with `batch`, `line` and `verdict`.
"""

from batchline.model.batch import Batch, BatchStatus, RunSettings
from batchline.model.file import ContentError, File
from batchline.model.line import Claim, Item
from batchline.model.operation import (
    DURATION_BOUNDS,
    Approval,
    Child,
    ChildCounts,
    ChildStatus,
    GovernedBatch,
    ParentStatus,
)
from batchline.model.tenant import ANYBODY, DEFAULT_TENANT, ApiKey, RequestKind, Role
from batchline.model.usage import NO_USAGE, Usage
from batchline.model.verdict import (
    Completed,
    Deferred,
    Failed,
    Parked,
    Ran,
    Retry,
    Settled,
    TimedOut,
    Verdict,
)
from batchline.model.work import PollResult

__all__ = [
    "ANYBODY",
    "DEFAULT_TENANT",
    "DURATION_BOUNDS",
    "NO_USAGE",
    "ApiKey",
    "Approval",
    "Batch",
    "BatchStatus",
    "Child",
    "ChildCounts",
    "ChildStatus",
    "Claim",
    "Completed",
    "ContentError",
    "Deferred",
    "Failed",
    "File",
    "GovernedBatch",
    "Item",
    "ParentStatus",
    "Parked",
    "PollResult",
    "Ran",
    "RequestKind",
    "Retry",
    "Role",
    "RunSettings",
    "Settled",
    "TimedOut",
    "Usage",
    "Verdict",
]
