"""What a call of a handler means for one of its items.

An outcome says nothing about attempts that are left: `judge` makes a verdict of it. A child process sends
outcomes to its worker.
"""

from typing import Any, TypeAlias

import msgspec

from batchline.model.emission import Emission
from batchline.operations.codec import TypeMismatch
from batchline.operations.context import Context
from batchline.operations.operation import AnyOperation
from batchline.operations.outcomes import Fail, Parked, Retry
from batchline.secrets.tracebacks import traceback_of

INVALID_ITEM, INVALID_RESULT, TIMEOUT = "invalid_item", "invalid_result", "timeout"
MAX_RESULT = 16 * 2**20
MAX_EMITTED = 64 * 2**20
_MAX_MESSAGE = 4096
_MAX_CODE = 64
# A tuple, made once: this is checked for every item.
_RAISED = (Retry, Fail)


class Returned(msgspec.Struct, frozen=True, tag="returned"):
    """The handler has returned a value, here as JSON."""

    body: bytes
    emitted: tuple[Emission, ...] = ()


class AttemptFailed(msgspec.Struct, frozen=True, tag="attempt_failed"):
    """The attempt has failed. `after` is the delay that the handler asks for. `trace` is for the log."""

    code: str
    message: str
    after: float | None = None
    trace: str = ""


class FailedForGood(msgspec.Struct, frozen=True, tag="failed"):
    code: str
    message: str


class TaskStarted(msgspec.Struct, frozen=True, tag="parked"):
    """Another system works on the item."""

    task_id: str
    after: float


Outcome: TypeAlias = Returned | AttemptFailed | FailedForGood | TaskStarted


def outcome_of(operation: AnyOperation, context: Context | None, result: Any) -> Outcome:
    """The outcome of a handler that has returned `result` for one item."""
    if isinstance(result, Parked):
        return TaskStarted(result.task_id, result.after)
    if isinstance(result, _RAISED):
        return outcome_of_error(result)
    try:
        body = operation.codec.encode_result(result)
    except TypeMismatch as error:
        return FailedForGood(INVALID_RESULT, cleaned(f"The result does not match: {error}"))
    if len(body) > MAX_RESULT:
        return FailedForGood(INVALID_RESULT, f"The result exceeds {MAX_RESULT} bytes.")
    if context is None or context.emitted is None:
        return Returned(body)
    if sum(len(each.body) + len(each.custom_id) for each in context.emitted) > MAX_EMITTED:
        return FailedForGood(INVALID_RESULT, f"The emitted items exceed {MAX_EMITTED} bytes.")
    return Returned(body, tuple(context.emitted))


def outcome_of_error(error: BaseException) -> Outcome:
    """The outcome of a handler that has raised this."""
    try:
        return _outcome_of_error(error)
    except BaseException as problem:  # noqa: BLE001
        # The class is the user's, and may raise anything when its attributes are read.
        return AttemptFailed(_code(type(error).__name__), message_of(error), trace=traceback_of(problem))


def _outcome_of_error(error: BaseException) -> Outcome:
    match error:
        case Retry():
            return AttemptFailed(_code(type(error).__name__), message_of(error), error.after)
        case Fail():
            return FailedForGood(_code(error.code or type(error).__name__), message_of(error))
        case _:
            return AttemptFailed(_code(type(error).__name__), message_of(error), trace=traceback_of(error))


def message_of(error: BaseException) -> str:
    try:
        return cleaned(str(error))
    except BaseException:  # noqa: BLE001
        # The class is the user's, and may raise anything.
        return ""


def cleaned(text: str) -> str:
    """Not too long, and as PostgreSQL stores it: UTF-8 without NUL."""
    return text[:_MAX_MESSAGE].encode("utf-8", "replace").decode().replace("\0", "�")


def _code(code: str) -> str:
    return cleaned(str(code))[:_MAX_CODE]
