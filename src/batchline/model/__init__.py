"""Domain types: frozen, one module per subject. Imports nothing of Batchline.

They are msgspec structs, which are ten times cheaper to create than frozen dataclasses: a worker creates
thousands of items and verdicts per second. Start with `batch`, `line` and `verdict`.
"""

from batchline.model.answer_rules import AnswerRules
from batchline.model.attempt import Attempt, AttemptTimes, ItemHistory, Phases, phases
from batchline.model.batch import (
    BATCH_APIS,
    MAX_CONCURRENCY,
    MAX_PRIORITY,
    MIN_PRIORITY,
    PROVIDER_NAMES,
    RELAYED,
    RESERVED,
    Batch,
    BatchChange,
    BatchStatus,
    ItemCounts,
    ProviderSettings,
    Recovery,
    RelaySettings,
    RunCommand,
    RunSettings,
    Via,
)
from batchline.model.event import DECISION_EVENTS, END_EVENTS, EVENTS
from batchline.model.failure import Cause, CauseCount
from batchline.model.file import ContentError, File
from batchline.model.line import Claim, Item, Stamps
from batchline.model.operation import (
    DURATION_BOUNDS,
    Approval,
    Child,
    ChildCounts,
    ChildStatus,
    GovernedBatch,
    ParentStatus,
)
from batchline.model.pause import PauseReason
from batchline.model.retry import RetrySelection, Unfinished
from batchline.model.spending import ModelPrice, Spending
from batchline.model.steps import StepPlan
from batchline.model.tenant import ANYBODY, DEFAULT_TENANT, ApiKey, RequestKind, Role
from batchline.model.usage import NO_USAGE, TenantUsage, Usage
from batchline.model.verdict import (
    Completed,
    Deferred,
    Failed,
    Ran,
    Retried,
    Settled,
    SubmissionUnknown,
    TaskParked,
    TimedOut,
    Verdict,
)
from batchline.model.work import KeyLoad, PollResult

__all__ = [
    "ANYBODY",
    "BATCH_APIS",
    "DECISION_EVENTS",
    "DEFAULT_TENANT",
    "DURATION_BOUNDS",
    "END_EVENTS",
    "EVENTS",
    "MAX_CONCURRENCY",
    "MAX_PRIORITY",
    "MIN_PRIORITY",
    "NO_USAGE",
    "PROVIDER_NAMES",
    "RELAYED",
    "RESERVED",
    "AnswerRules",
    "ApiKey",
    "Approval",
    "Attempt",
    "AttemptTimes",
    "Batch",
    "BatchChange",
    "BatchStatus",
    "Cause",
    "CauseCount",
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
    "ItemCounts",
    "ItemHistory",
    "KeyLoad",
    "ModelPrice",
    "ParentStatus",
    "PauseReason",
    "Phases",
    "PollResult",
    "ProviderSettings",
    "Ran",
    "Recovery",
    "RelaySettings",
    "RequestKind",
    "Retried",
    "RetrySelection",
    "Role",
    "RunCommand",
    "RunSettings",
    "Settled",
    "Spending",
    "Stamps",
    "StepPlan",
    "SubmissionUnknown",
    "TaskParked",
    "TenantUsage",
    "TimedOut",
    "Unfinished",
    "Usage",
    "Verdict",
    "Via",
    "phases",
]
