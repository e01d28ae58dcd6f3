"""Verdicts as settle_v2 takes them: in groups of one kind on one span, and as columns instead of rows.

This runs for every finished item of a worker, so it is written for speed: one loop that sorts the verdicts,
then list comprehensions, a column at a time.
"""

from collections.abc import Collection, Iterable, Sequence
from itertools import chain
from time import monotonic
from typing import TypeAlias, TypeVar
from uuid import UUID

from batchline.model import (
    NO_USAGE,
    Cause,
    Completed,
    Deferred,
    Failed,
    Retried,
    SubmissionUnknown,
    TaskParked,
    Usage,
    Verdict,
)
from batchline.model.failure import cause, cause_of_line
from batchline.model.sink import SinkRow
from batchline.model.usage import total_usage
from batchline.store.arrays import (
    Float4Array,
    Float8Array,
    Int2Array,
    Int4Array,
    Int8Array,
    MultirangeArray,
    TextArray,
)

_MAX_INT = 2**31 - 1
_COMPLETED, _FAILED, _RETRY, _DEFERRED, _UNKNOWN, _CRASHED = range(6)
_ANSWERED = (Completed, Failed, Retried)

# What the verdicts of a group have in common: span, kind, status code, delay, the key of the cause, the
# upstream that may still work on them, lane and batch; or instead of the batch, where each verdict is to
# stand in a group of its own, its number. Two claims may have one span's number, of which one is stale: see
# record_verdicts_v2.sql. All items of a claim share the object that is the batch's id, also after routing.
# Its address stands for it: UUIDs are hashed in Python code.
_Key: TypeAlias = tuple[int, int, int | None, float, str | None, str | None, int, int]
_Group: TypeAlias = list[Verdict]
_Value = TypeVar("_Value")


class Grouped:
    """The verdicts of one settle. `apart`: each in a group of its own.

    The number of a group is its place in the arrays, counted from 1 as PostgreSQL does. `parked` are not in
    the arrays: park.sql takes them.
    """

    def __init__(self, verdicts: Sequence[Verdict], *, apart: bool = False) -> None:
        groups: dict[_Key, _Group] = {}
        self.parked: list[TaskParked] = []
        self._causes: dict[str, Cause] = {}
        for number, verdict in enumerate(_first_of_each(verdicts)):
            claim = verdict.item.claim
            span_id, lane_id, own = claim.span_id, claim.lane_id, number if apart else id(claim.batch_id)
            match verdict:
                case Completed():
                    key: _Key = (span_id, _COMPLETED, verdict.status_code, 0.0, None, None, lane_id, own)
                case Failed():
                    why = cause_of_line(verdict.output, verdict.status_code, verdict.item.custom_id)
                    cause_key = self._noted(why)
                    key = (span_id, _FAILED, verdict.status_code, 0.0, cause_key, None, lane_id, own)
                case Retried():
                    why = cause(verdict.error_code, verdict.message)
                    sent_to = verdict.sent_to
                    key = (span_id, _RETRY, None, verdict.delay, self._noted(why), sent_to, lane_id, own)
                case Deferred():
                    kind = _CRASHED if verdict.crashed else _DEFERRED
                    sent_to = verdict.sent_to or claim.sent_to
                    key = (span_id, kind, None, verdict.delay, None, sent_to, lane_id, own)
                case SubmissionUnknown():
                    sent_to = claim.sent_to or claim.sender
                    key = (span_id, _UNKNOWN, None, verdict.delay, None, sent_to, lane_id, own)
                case TaskParked():
                    self.parked.append(verdict)
                    continue
            group = groups.get(key)
            if group is None:
                groups[key] = [verdict]
            else:
                group.append(verdict)
        self._keys = list(groups)
        self._groups = list(groups.values())

    def __len__(self) -> int:
        return len(self._groups)

    @property
    def size(self) -> int:
        """Bytes of output, and of what is emitted."""
        answered = [v for group in self._groups for v in group if isinstance(v, _ANSWERED)]
        emitted = (len(e.body) for v in answered if isinstance(v, Completed) for e in v.emitted)
        return sum(len(v.output) for v in answered) + sum(emitted)

    @property
    def sunk(self) -> bool:
        """Whether a result also goes to a table of the user's."""
        return any(isinstance(v, Completed) and v.sink is not None for group in self._groups for v in group)

    def sink_rows(self, refused: Collection[int]) -> list[SinkRow]:
        """Those of the groups that count."""
        return [
            verdict.sink
            for no, group in enumerate(self._groups, 1)
            if no not in refused
            for verdict in group
            if isinstance(verdict, Completed) and verdict.sink is not None
        ]

    def members(self, nos: Sequence[int]) -> list[Verdict]:
        """The verdicts of some groups."""
        return [verdict for no in nos for verdict in self._groups[no - 1]]

    def columns(self) -> dict[str, object]:
        columns = zip(*self._keys, strict=True) if self._keys else [()] * 8
        spans, kinds, status_codes, delays, causes, senders, lanes, _ = columns
        ordinals = [[verdict.item.ordinal for verdict in group] for group in self._groups]
        usages = [_usages(group) for group in self._groups]
        inputs = [_counts([usage.input_tokens for usage in group]) for group in usages]
        outputs = [_counts([usage.output_tokens for usage in group]) for group in usages]
        ended = [at for at, kind in enumerate(kinds) if kind in (_COMPLETED, _FAILED)]
        return {
            "spans": Int8Array(spans),
            "kinds": Int2Array(kinds),
            "status_codes": Int2Array(status_codes),
            "delays": Float8Array(delays),
            "ordinals": MultirangeArray(ordinals),
            "sizes": Int4Array([len(group) for group in self._groups]),
            "input_tokens": Int8Array([sum(counts) for counts in inputs]),
            "cached_tokens": Int8Array([sum(_counts([u.cached_tokens for u in group])) for group in usages]),
            "output_tokens": Int8Array([sum(counts) for counts in outputs]),
            "reasoning_tokens": Int8Array(
                [sum(_counts([u.reasoning_tokens for u in group])) for group in usages]
            ),
            "costs": Int8Array([_cost(group, of) for group, of in zip(self._groups, usages, strict=True)]),
            "ended_groups": Int4Array(_flat([at + 1] * len(self._groups[at]) for at in ended)),
            "ended_line_nos": Int4Array([v.item.line_no for at in ended for v in self._groups[at]]),
            "ended_ordinals": Int4Array(_flat(ordinals[at] for at in ended)),
            "ended_input_tokens": Int4Array(_flat(inputs[at] for at in ended)),
            "ended_output_tokens": Int4Array(_flat(outputs[at] for at in ended)),
            "outputs": TextArray(_flat(_lines(self._groups[at]) for at in ended)),
            **_times("ended", [v for at in ended for v in self._groups[at]]),
            **self._retried(),
            **self._caused(causes),
            **self._emitted(),
            "senders": TextArray([None if name is None else _text(name) for name in senders]),
            "lanes": Int8Array(lanes),
            "batches": [group[0].item.claim.batch_id for group in self._groups],
        }

    def _retried(self) -> dict[str, object]:
        """One entry for each retry."""
        retried = [
            (no, verdict)
            for no, group in enumerate(self._groups, 1)
            # All of a group are of one kind: most groups are passed over as a whole.
            if isinstance(group[0], Retried)
            for verdict in group
            if isinstance(verdict, Retried)
        ]
        return {
            "retried_groups": Int4Array([no for no, _ in retried]),
            "retried_ordinals": Int4Array([verdict.item.ordinal for _, verdict in retried]),
            "error_codes": TextArray([_text(verdict.error_code) for _, verdict in retried]),
            "messages": TextArray([verdict.output or _text(verdict.message) for _, verdict in retried]),
            **_times("retried", [verdict for _, verdict in retried]),
        }

    def _emitted(self) -> dict[str, object]:
        """One entry for each line that a completed item adds to a later stage."""
        emitted = [
            (no, each)
            for no, group in enumerate(self._groups, 1)
            if isinstance(group[0], Completed)
            for verdict in group
            if isinstance(verdict, Completed)
            for each in verdict.emitted
        ]
        return {
            "emitted_groups": Int4Array([no for no, _ in emitted]),
            "emitted_urls": TextArray([each.url.encode() for _, each in emitted]),
            "emitted_ids": TextArray([each.custom_id for _, each in emitted]),
            "emitted_bodies": TextArray([each.body for _, each in emitted]),
        }

    def _noted(self, found: Cause) -> str:
        self._causes[found.key] = found
        return found.key

    def _caused(self, causes: Sequence[str | None]) -> dict[str, object]:
        """The cause of each group, and each cause once. Empty if nothing has failed."""
        known = self._causes.values()
        return {
            "causes": TextArray([None if key is None else key.encode() for key in causes] if known else []),
            "cause_keys": TextArray([each.key.encode() for each in known]),
            "cause_codes": TextArray([_text(each.code) for each in known]),
            "cause_messages": TextArray([_text(each.message) for each in known]),
        }


def _first_of_each(verdicts: Sequence[Verdict]) -> Sequence[Verdict]:
    """Two answers to one item can meet here, where a worker took back what it had lost: the first wins."""
    items = {(verdict.item.claim.span_id, verdict.item.ordinal) for verdict in verdicts}
    if len(items) == len(verdicts):
        return verdicts
    firsts: dict[tuple[int, int, UUID, int], Verdict] = {}
    for verdict in verdicts:
        claim = verdict.item.claim
        firsts.setdefault((claim.span_id, claim.lane_id, claim.batch_id, verdict.item.ordinal), verdict)
    return list(firsts.values())


def _times(name: str, verdicts: Sequence[Verdict]) -> dict[str, object]:
    """How long the upstream took to answer each item, and how long the answer has waited since."""
    now, stamps = monotonic(), [verdict.item.stamps for verdict in verdicts]
    return {
        f"{name}_upstream": Float4Array([each.answered - each.sent for each in stamps]),
        f"{name}_settling": Float4Array([now - each.answered if each.answered else 0.0 for each in stamps]),
    }


def _usages(group: _Group) -> list[Usage]:
    return [verdict.usage if isinstance(verdict, _ANSWERED) else NO_USAGE for verdict in group]


def _cost(group: _Group, usages: list[Usage]) -> int:
    """In nano-dollars. All of a group have one span, so one model and one price."""
    claim = group[0].item.claim
    spending = claim.settings.spending
    return 0 if spending is None else spending.cost(claim.model, total_usage(usages))


def _lines(group: _Group) -> list[bytes]:
    return [verdict.output for verdict in group if isinstance(verdict, (Completed, Failed))]


def _counts(counts: list[int]) -> list[int]:
    """As the columns can hold them."""
    return counts if max(counts, default=0) <= _MAX_INT else [min(count, _MAX_INT) for count in counts]


def _flat(lists: Iterable[list[_Value]]) -> list[_Value]:
    return list(chain.from_iterable(lists))


def _text(value: str) -> bytes:
    """Text that PostgreSQL takes: it stores no NUL character."""
    return value.replace("\0", "\N{SYMBOL FOR NULL}").encode("utf-8", "replace")
