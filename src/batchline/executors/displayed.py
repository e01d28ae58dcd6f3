"""The part of a result that may be shown: without the secrets of its item, wherever they are quoted."""

from typing import Any

import msgspec

from batchline.governance.operations import Operation
from batchline.model.json_limits import MAX_DEPTH, is_too_deep
from batchline.secrets.masking import MASK, TooManySecrets, masked_text, secrets_of, without

# A larger one is not searched for secrets, and so not shown.
_MAX_DISPLAYED = 1024 * 1024


def displayed_result(operation: Operation, requested: dict[str, Any], text: bytes, said: Any) -> bytes:
    """A result as JSON, without secrets. `text` is `said` as JSON. What cannot be searched is not shown."""
    if is_too_deep(text):
        return _hidden(f"the answer is nested more than {MAX_DEPTH} levels deep")
    if len(text) > _MAX_DISPLAYED:
        return _hidden(f"the answer has more than {_MAX_DISPLAYED:,} bytes")
    try:
        secrets = secrets_of(requested, operation.redact)
    except TooManySecrets as error:
        return _hidden(f"the item has {error}")
    return msgspec.json.encode(operation.masked(without(said, secrets)))


def displayed_text(operation: Operation, requested: dict[str, Any], text: str) -> str:
    """A message without secrets."""
    try:
        secrets = secrets_of(requested, operation.redact)
    except TooManySecrets:
        return MASK
    return masked_text(str(without(text, secrets)))


def _hidden(why: str) -> bytes:
    return msgspec.json.encode(f"{MASK}: {why}, so it cannot be shown")
