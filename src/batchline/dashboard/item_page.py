"""One item in full: its request, its answer, and its attempts with where their time went.

Items of governed batches are shown as the API for these shows them, without secrets.
"""

import asyncio
import shlex
from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from batchline.governance import access, children
from batchline.governance.access import Actor
from batchline.governance.registry import Registry
from batchline.model import Batch, ItemHistory
from batchline.model.attempt import Phases, phases
from batchline.secrets.addresses import public_url
from batchline.store import attempts, items, operations
from batchline.store.items import ItemRow, StoredLine
from batchline.store.listing import BatchSummary
from batchline.store.session import Session

# A body that is larger is cut.
MAX_BODY = 256 * 1024
_STATES = {"claimed": "in_flight", "processing": "in_flight", "canceled": "cancelled"}
_FINISHED = ("completed", "failed")


class CutText(msgspec.Struct, frozen=True):
    """The beginning of a large text."""

    text: str
    bytes: int
    cut: bool = True


class AttemptFigures(msgspec.Struct, frozen=True):
    """`held_ms`: in a worker's hands now. The other durations are parts of the wall time."""

    n: int
    began_at: datetime | None
    ended_at: datetime | None
    code: str | None
    message: str | None
    waiting_ms: int
    limit_ms: int
    backoff_ms: int
    upstream_ms: int
    settling_ms: int
    held_ms: int


class ItemFigures(msgspec.Struct, frozen=True):
    line: int
    custom_id: str
    state: str
    attempts: int
    code: str | None
    message: str | None
    upstream_ms: float | None
    finished_at: datetime | None


class ItemPage(msgspec.Struct, frozen=True):
    line: int
    custom_id: str
    state: str
    code: str | None
    message: str | None
    upstream_ms: float | None
    finished_at: datetime | None
    request: Any
    answer: Any
    attempts: Sequence[AttemptFigures]
    curl: str | None


def figures_of_item(row: ItemRow) -> ItemFigures:
    return ItemFigures(
        row.line,
        row.custom_id,
        row.state,
        row.attempts,
        row.code,
        row.message,
        _milliseconds(row.upstream_seconds),
        row.finished_at,
    )


async def read(
    session: Session, actor: Actor, registry: Registry, summary: BatchSummary, line_no: int
) -> ItemPage | None:
    """None: the batch has no such line, or its results have been deleted."""
    batch = summary.batch
    stored = await items.line(session, batch.id, line_no, MAX_BODY)
    if stored is None:
        return None
    history = await attempts.at(session, batch.id, stored.lane, stored.ordinal)
    if history is None:
        return None
    if summary.operation is not None:
        request, answer = await _governed(session, actor, registry, batch.id, line_no)
        return _page(history, request, answer, None)
    # In a thread: texts of this size take a while to decode.
    return await asyncio.to_thread(_ordinary, batch, stored, history)


def _ordinary(batch: Batch, stored: StoredLine, history: ItemHistory) -> ItemPage:
    request = _displayed(stored.body, stored.body_bytes)
    output = None if stored.output is None else _displayed(stored.output, stored.output_bytes or 0)
    answer = output if isinstance(output, CutText) else _answer(output)
    curl = None if isinstance(request, CutText) else curl_of(batch, stored)
    return _page(history, request, answer, curl)


def _page(history: ItemHistory, request: Any, answer: Any, curl: str | None) -> ItemPage:
    return ItemPage(
        line=history.line_no,
        custom_id=history.custom_id,
        state=_STATES.get(history.state, history.state),
        code=history.error_code,
        message=history.message,
        upstream_ms=None if history.times is None else _milliseconds(history.times.upstream),
        finished_at=history.finished_at,
        request=request,
        answer=answer,
        attempts=_attempts(history),
        curl=curl,
    )


async def _governed(
    session: Session, actor: Actor, registry: Registry, batch_id: UUID, line_no: int
) -> tuple[Any, Any]:
    batch = await access.visible(session, actor, batch_id)
    (child,) = await operations.children(session, batch_id, after=line_no - 1, limit=1)
    displayed = children.reported(child, batch, registry.find(batch.operation))
    answer = displayed.result if displayed.error is None else msgspec.to_builtins(displayed.error)
    return displayed.item, answer


def _attempts(history: ItemHistory) -> list[AttemptFigures]:
    """Those that are over, and the last one, in whatever state it is."""
    found = phases(history)
    began = history.started_at
    figures = list[AttemptFigures]()
    for n, (attempt, spent) in enumerate(zip(history.attempts, found, strict=False), 1):
        figures.append(_attempt(n, began, attempt.created_at, attempt.error_code, attempt.message, spent))
        began = attempt.created_at
    if len(found) > len(history.attempts):
        over = history.state in _FINISHED
        figures.append(
            _attempt(
                len(figures) + 1,
                began,
                history.finished_at if over else None,
                history.error_code,
                history.message,
                found[-1],
            )
        )
    return figures


def _attempt(
    n: int,
    began_at: datetime | None,
    ended_at: datetime | None,
    code: str | None,
    message: str | None,
    spent: Phases,
) -> AttemptFigures:
    return AttemptFigures(
        n,
        began_at,
        ended_at,
        code,
        message,
        spent.waiting,
        spent.limit,
        spent.backoff,
        spent.upstream,
        spent.settling,
        spent.held,
    )


def curl_of(batch: Batch, stored: StoredLine) -> str:
    """The request as a command. The URL of a server's upstream and its key are the operator's."""
    upstream = batch.settings.upstream
    base = '"$UPSTREAM"' if upstream is None else shlex.quote(public_url(upstream))
    path = stored.url.removeprefix("/v1") if upstream is not None else stored.url
    return (
        f"curl {base}{shlex.quote(path)} -H 'Content-Type: application/json'"
        f' -H "Authorization: Bearer $API_KEY" --data-raw {shlex.quote(stored.body)}'
    )


def _answer(line: Any) -> Any:
    """The answer in an output line, or its error."""
    if not isinstance(line, dict):
        return line
    response = line.get("response")
    return line.get("error") if not isinstance(response, dict) else response.get("body")


def _displayed(text: str, size: int) -> Any:
    """The value of JSON, or the beginning of a text that is too large. `size` is that of the whole text."""
    if (len(text) >= MAX_BODY and size > len(text.encode())) or size > MAX_BODY:
        return CutText(text, size)
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return CutText(text, size, cut=False)


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000, 1)
