"""Verdicts as settle.sql takes them: in groups of one kind on one span, and as columns instead of rows.

This runs for every finished item of a worker, so it is written for speed: one pass, plain lists, and
nothing made per item but what is sent.
"""

from collections.abc import Sequence
from typing import TypeAlias

from batchline.model import NO_USAGE, Completed, Deferred, Failed, Retry, Usage, Verdict
from batchline.store.arrays import (
    Float8Array,
    Int2Array,
    Int4Array,
    Int8Array,
    MultirangeArray,
    TextArray,
)

_MAX_INT = 2**31 - 1
_COMPLETED, _FAILED, _RETRY, _DEFERRED = range(4)


# What the verdicts of a group have in common: span, kind, status code, delay; and, where each verdict is to
# stand in a group of its own, its number.
_Key: TypeAlias = tuple[int, int, int | None, float, int]


class _Group:
    """Its number is its place in the arrays, counted from 1 as PostgreSQL does."""

    __slots__ = ("cached", "inputs", "no", "ordinals", "outputs", "reasoning", "verdicts")

    def __init__(self, no: int) -> None:
        self.no = no
        self.verdicts: list[Verdict] = []
        self.ordinals: list[int] = []
        self.inputs = self.cached = self.outputs = self.reasoning = 0


class Grouped:
    """The verdicts of one settle. `apart`: each in a group of its own."""

    def __init__(self, verdicts: Sequence[Verdict], *, apart: bool = False) -> None:
        self._apart = apart
        self._groups: dict[_Key, _Group] = {}
        # Two answers to one item can meet here, where a worker took back what it had lost: the first wins.
        self._seen: set[tuple[int, int]] = set()
        # One entry for each outcome, and one for each retry.
        self._ended: tuple[list[int], list[int], list[int], list[int], list[int]] = [], [], [], [], []
        self._outputs: list[bytes] = []
        self._retried: tuple[list[int], list[int]] = [], []
        self._codes: list[bytes] = []
        self._messages: list[bytes] = []
        for verdict in verdicts:
            self._add(verdict)

    def __len__(self) -> int:
        return len(self._groups)

    def members(self, nos: Sequence[int]) -> list[Verdict]:
        """The verdicts of some groups."""
        groups = list(self._groups.values())
        return [verdict for no in nos for verdict in groups[no - 1].verdicts]

    def columns(self) -> dict[str, object]:
        groups = list(self._groups.values())
        spans, kinds, status_codes, delays, _ = zip(*self._groups, strict=True) if groups else [()] * 5
        ended_groups, line_nos, ordinals, inputs, outputs = self._ended
        retried_groups, retried_ordinals = self._retried
        return {
            "spans": Int8Array(spans),
            "kinds": Int2Array(kinds),
            "status_codes": Int2Array(status_codes),
            "delays": Float8Array(delays),
            "ordinals": MultirangeArray([group.ordinals for group in groups]),
            "sizes": Int4Array([len(group.ordinals) for group in groups]),
            "input_tokens": Int8Array([group.inputs for group in groups]),
            "cached_tokens": Int8Array([group.cached for group in groups]),
            "output_tokens": Int8Array([group.outputs for group in groups]),
            "reasoning_tokens": Int8Array([group.reasoning for group in groups]),
            "ended_groups": Int4Array(ended_groups),
            "ended_line_nos": Int4Array(line_nos),
            "ended_ordinals": Int4Array(ordinals),
            "ended_input_tokens": Int4Array(inputs),
            "ended_output_tokens": Int4Array(outputs),
            "outputs": TextArray(self._outputs),
            "retried_groups": Int4Array(retried_groups),
            "retried_ordinals": Int4Array(retried_ordinals),
            "error_codes": TextArray(self._codes),
            "messages": TextArray(self._messages),
        }

    def _add(self, verdict: Verdict) -> None:
        match verdict:
            case Completed():
                self._end(verdict, _COMPLETED, verdict.usage)
            case Failed():
                self._end(verdict, _FAILED, NO_USAGE)
            case Retry():
                if (group := self._group(verdict, _RETRY, None, verdict.delay)) is not None:
                    self._retried[0].append(group.no)
                    self._retried[1].append(verdict.item.ordinal)
                    self._codes.append(_text(verdict.error_code))
                    self._messages.append(_text(verdict.message))
            case Deferred():
                self._group(verdict, _DEFERRED, None, verdict.delay)

    def _end(self, verdict: Completed | Failed, kind: int, usage: Usage) -> None:
        group = self._group(verdict, kind, verdict.status_code, 0.0)
        if group is None:
            return
        inputs = usage.input_tokens
        outputs = usage.output_tokens
        if inputs > _MAX_INT or outputs > _MAX_INT:
            inputs, outputs = min(inputs, _MAX_INT), min(outputs, _MAX_INT)
        group.inputs += inputs
        group.outputs += outputs
        group.cached += min(usage.cached_tokens, _MAX_INT) if usage.cached_tokens else 0
        group.reasoning += min(usage.reasoning_tokens, _MAX_INT) if usage.reasoning_tokens else 0
        item = verdict.item
        groups, line_nos, ordinals, input_tokens, output_tokens = self._ended
        groups.append(group.no)
        line_nos.append(item.line_no)
        ordinals.append(item.ordinal)
        input_tokens.append(inputs)
        output_tokens.append(outputs)
        self._outputs.append(verdict.output)

    def _group(self, verdict: Verdict, kind: int, status_code: int | None, delay: float) -> _Group | None:
        """Where the verdict belongs, and has been put; None if its item has one already."""
        item = verdict.item
        span_id, ordinal = item.claim.span_id, item.ordinal
        place = (span_id, ordinal)
        if place in self._seen:
            return None
        self._seen.add(place)
        apart = len(self._seen) if self._apart else 0
        key = (span_id, kind, status_code, delay, apart)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = _Group(len(self._groups) + 1)
        group.verdicts.append(verdict)
        group.ordinals.append(ordinal)
        return group


def _text(value: str) -> bytes:
    """Text that PostgreSQL takes: it stores no NUL character."""
    return value.replace("\0", "\N{SYMBOL FOR NULL}").encode("utf-8", "replace")
