"""The item of a child and its error or result, without secrets. API and commands show children only so.

Answers of upstreams are masked before they are stored. They are masked again here, because rules may have
become stricter and custom handlers store unmasked results.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from batchline.governance.operations import Operation
from batchline.model import Approval, Child, ChildStatus, GovernedBatch
from batchline.model.json_limits import MAX_DEPTH, WRAPPED, is_too_deep
from batchline.secrets.masking import MASK, masked

_MAX_MESSAGE = 2000
_HIDDEN = f"{MASK}: nested more than {MAX_DEPTH} levels deep"


class ChildFailure(msgspec.Struct, frozen=True):
    code: str
    message: str


_NOT_DISPLAYED = ChildFailure("RESULT_NOT_DISPLAYED", _HIDDEN)


class Reported(msgspec.Struct, frozen=True):
    """The item, and either an error or a result; neither while the child has not ended."""

    error: ChildFailure | None = None
    result: Any = None
    item: Any = None


def reported(child: Child, batch: GovernedBatch, operation: Operation | None) -> Reported:
    """`operation` is None if it is no longer registered: then only the default secrets are masked."""
    redact = () if operation is None else operation.redact
    item = _decoded(child.body)
    return msgspec.structs.replace(
        _ended(child, batch, redact), item=_HIDDEN if item is None else masked(item, redact)
    )


def _ended(child: Child, batch: GovernedBatch, redact: Sequence[str]) -> Reported:
    if child.status is ChildStatus.CANCELLED:
        return Reported(error=_never_ran(batch))
    line = _decoded(child.output or "{}")
    if line is None:
        return (
            Reported(error=_NOT_DISPLAYED) if child.status is ChildStatus.FAILED else Reported(result=_HIDDEN)
        )
    response = line.get("response")
    body = response.get("body") if isinstance(response, dict) else None
    if child.status is not ChildStatus.FAILED:
        return Reported(result=masked(body, redact))
    error = line.get("error")
    if not isinstance(error, dict):
        error = {"code": f"http_{child.status_code}", "message": _message(masked(body, redact))}
    displayed = masked({name: str(error.get(name)) for name in ("code", "message")}, redact)
    return Reported(error=ChildFailure(**displayed))


def _decoded(text: str) -> dict[str, Any] | None:
    """None: it is nested too deep to decode."""
    encoded = text.encode()
    if is_too_deep(encoded, MAX_DEPTH + WRAPPED):
        return None
    value = msgspec.json.decode(encoded)
    return value if isinstance(value, dict) else {}


def _never_ran(batch: GovernedBatch) -> ChildFailure:
    if batch.approval is Approval.REJECTED:
        why = f": {batch.decision_reason}" if batch.decision_reason else ""
        return ChildFailure("BATCH_REJECTED", f"The batch was rejected by {batch.decided_by}{why}")
    if batch.cancelling_at is not None:
        return ChildFailure("BATCH_CANCELLED", "The batch was cancelled before this child ran.")
    return ChildFailure("BATCH_EXPIRED", "The batch expired before this child ran.")


def _message(body: Any) -> str:
    """The message in an answer, as Kubernetes and most APIs have it, or else the whole answer."""
    if isinstance(body, dict):
        inner = body.get("error")
        message = body.get("message") or (inner.get("message") if isinstance(inner, dict) else inner)
        if isinstance(message, str):
            return message
    return body if isinstance(body, str) else msgspec.json.encode(body).decode()[:_MAX_MESSAGE]
