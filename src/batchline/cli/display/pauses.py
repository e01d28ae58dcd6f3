"""Why a rule has paused a batch, and how to continue: for people and as a document."""

from typing import Any

import msgspec

from batchline.cli.display.money import money
from batchline.model import Batch, PauseReason
from batchline.model.spending import nano_dollars

_REMOVE = "remove the cause, then continue with"


def pause_document(reason: PauseReason | None) -> dict[str, Any] | None:
    return None if reason is None else msgspec.structs.asdict(reason)


def pause_message(reason: PauseReason, batch: Batch, command: str) -> str:
    """`command` continues the batch."""
    why, remedy = _why_and_remedy(reason, batch)
    return (
        f"paused: {why}; {batch.finished:,} of {batch.total:,} done, nothing is lost; {remedy}\n  {command}"
    )


def _why_and_remedy(reason: PauseReason, batch: Batch) -> tuple[str, str]:
    threshold = reason.threshold or 0
    match reason.rule:
        case "alike":
            return f"the first lines all fail alike ({batch.failed:,} so far)", _REMOVE
        case "max_failed":
            return f"{batch.failed:,} lines have failed, and {threshold:,} may (--max-failed)", _REMOVE
        case "sample":
            return "only the sample was run", "to run the rest"
        case "max_cost":
            return _over("--max-cost", money(nano_dollars(threshold)))
        case _:
            return _over("--max-tokens", f"{threshold:,} tokens")


def _over(option: str, cap: str) -> tuple[str, str]:
    return f"the next request could exceed {option} {cap}", f"to continue, give a higher {option} to"
