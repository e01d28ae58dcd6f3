"""Check the results of a round against files, counters and the upstream's ledger, without using Batchline.

Every line of every order has exactly one outcome. An outcome counts only if the upstream's ledger confirms
it: an answer under the key in the output line, an error that the upstream sent, or a request that it did not
answer. Lines that never ran must belong to a batch that was cancelled or expired.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any
from uuid import UUID

import msgspec

from batchline.simulate import answer_to
from chaos import inputs
from chaos.clients import Displayed, Placed
from chaos.inputs import Line
from chaos.ledger import LedgerEntry, LedgerEvent
from chaos.schedule import ATTEMPTS
from chaos.upstream import PADDINGS

_NEVER_RAN = {"batch_cancelled": "cancelled", "batch_expired": "expired"}
_SILENCES = {"timeout": (LedgerEvent.HUNG, LedgerEvent.LATE), "connection_lost": (LedgerEvent.DROPPED,)}
# An oversized answer must fail only its own line.
_TOO_LARGE = ("response_too_large", "result_refused")
_MAXIMUM = 20


class FindingKind(StrEnum):
    LOST = "lost"
    DOUBLED = "doubled"
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class ChaosFinding:
    kind: FindingKind
    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.where}: {self.what}"


@dataclass(frozen=True, slots=True)
class CheckedBatch:
    """A batch according to the database and its files."""

    id: UUID
    status: str
    total: int
    completed: int
    failed: int
    input_tokens: int
    output_tokens: int
    output: bytes
    errors: bytes


@dataclass(slots=True)
class Tally:
    """Counts of what was checked and found correct."""

    batches: Counter[str] = field(default_factory=Counter)
    completed: int = 0
    failed: int = 0
    never_ran: int = 0
    requests: int = 0
    runs: int = 0
    resent: int = 0
    """Requests whose key was sent before."""
    attempts: int = 0
    """Keys beyond the first of their line."""
    rule_broken: int = 0
    """Keys that the upstream ran again because a fault made it forget them."""

    def add(self, other: "Tally") -> None:
        self.batches += other.batches
        for name in (
            "completed",
            "failed",
            "never_ran",
            "requests",
            "runs",
            "resent",
            "attempts",
            "rule_broken",
        ):
            setattr(self, name, getattr(self, name) + getattr(other, name))


def check(
    orders: Sequence[Placed], batches: Mapping[UUID, CheckedBatch], ledger: Mapping[str, LedgerEntry]
) -> tuple[Tally, list[ChaosFinding]]:
    """Check all batches of one round, after everything has ended."""
    tally, findings = Tally(), []
    keys, strangers = _by_batch(ledger)
    findings += [
        ChaosFinding(FindingKind.WRONG, key, "the upstream received an unknown key") for key in strangers
    ]
    ordered = {placed.batch_id for placed in orders}
    for batch_id in batches.keys() - ordered:
        findings.append(ChaosFinding(FindingKind.DOUBLED, str(batch_id), "a batch that no client knows"))
    for batch_hex in keys.keys() - {batch_id.hex for batch_id in batches}:
        findings.append(
            ChaosFinding(
                FindingKind.WRONG, batch_hex, "the upstream received lines of a batch that does not exist"
            )
        )
    for placed in orders:
        batch = None if placed.batch_id is None else batches.get(placed.batch_id)
        if batch is None:
            findings.append(
                ChaosFinding(FindingKind.LOST, placed.order.name, f"batch {placed.batch_id} does not exist")
            )
            continue
        examined = _Examined(placed, batch, keys.get(batch.id.hex, {}), tally)
        found = list(examined.findings())
        findings += found[:_MAXIMUM]
        if len(found) > _MAXIMUM:
            findings.append(
                ChaosFinding(found[-1].kind, placed.order.name, f"and {len(found) - _MAXIMUM} more")
            )
    return tally, findings


def check_displayed(batch: CheckedBatch, displayed: Displayed) -> list[ChaosFinding]:
    """Check that the server returns the batch and its files correctly."""
    pairs = {
        "status": (batch.status, displayed.status),
        "counts": ((batch.total, batch.completed, batch.failed), displayed.counts),
        "output file": (batch.output, displayed.output),
        "error file": (batch.errors, displayed.errors),
    }
    return [
        ChaosFinding(
            FindingKind.WRONG, str(batch.id), f"the server returns a different {what} than is stored"
        )
        for what, (actual, given) in pairs.items()
        if actual != given
    ]


Keys = dict[int, dict[int, LedgerEntry]]
"""The ledger's entries of one batch, by line number and attempt."""


def _by_batch(ledger: Mapping[str, LedgerEntry]) -> tuple[dict[str, Keys], list[str]]:
    found: dict[str, Keys] = defaultdict(lambda: defaultdict(dict))
    strangers = []
    for key, entry in ledger.items():
        try:
            batch, line, attempt = key.split("-")
            found[batch][int(line)][int(attempt)] = entry
        except ValueError:
            strangers.append(key)
    return found, strangers


class _Examined:
    """The checks of one batch."""

    def __init__(self, placed: Placed, batch: CheckedBatch, keys: Keys, tally: Tally) -> None:
        self._placed = placed
        self._batch = batch
        self._keys = keys
        self._tally = tally
        self._lines = inputs.lines(placed.order)

    def findings(self) -> Iterator[ChaosFinding]:
        output, errors = _parsed(self._batch.output), _parsed(self._batch.errors)
        yield from self._outcomes(output, errors)
        yield from self._order_of(output, "output")
        yield from self._order_of(errors, "error")
        failed = [line for line in errors if _code(line) not in _NEVER_RAN]
        never = [line for line in errors if _code(line) in _NEVER_RAN]
        yield from self._counters(output, failed, never)
        yield from self._status(never)
        for line in output:
            yield from self._completed(line)
        for line in failed:
            yield from self._failed(line)
        yield from self._runs()

    def _outcomes(self, output: list[Any], errors: list[Any]) -> Iterator[ChaosFinding]:
        seen = Counter(line["custom_id"] for line in (*output, *errors))
        expected = {line.custom_id for line in self._lines}
        for custom_id in expected - seen.keys():
            yield self._finding(FindingKind.LOST, f"line {custom_id} has no outcome")
        for custom_id, times in seen.items():
            if custom_id not in expected:
                yield self._finding(FindingKind.WRONG, f"an outcome for {custom_id}, which was not ordered")
            elif times > 1:
                yield self._finding(FindingKind.DOUBLED, f"line {custom_id} has {times} outcomes")

    def _order_of(self, lines: list[Any], name: str) -> Iterator[ChaosFinding]:
        numbers = [_number(line) for line in lines]
        if numbers != sorted(numbers):
            yield self._finding(FindingKind.WRONG, f"the {name} lines are not in the order of the input")

    def _counters(self, output: list[Any], failed: list[Any], never: list[Any]) -> Iterator[ChaosFinding]:
        batch = self._batch
        usage = [line["response"]["body"]["usage"] for line in output if line["response"]]
        for name, counted, found in (
            ("total", batch.total, len(self._lines)),
            ("completed", batch.completed, len(output)),
            ("failed", batch.failed, len(failed)),
            ("lines in both files", batch.total, len(output) + len(failed) + len(never)),
            ("input tokens", batch.input_tokens, sum(one["prompt_tokens"] for one in usage)),
            ("output tokens", batch.output_tokens, sum(one["completion_tokens"] for one in usage)),
        ):
            if counted != found:
                yield self._finding(FindingKind.WRONG, f"{name}: counted {counted}, found {found}")
        self._tally.completed += len(output)
        self._tally.failed += len(failed)
        self._tally.never_ran += len(never)

    def _status(self, never: list[Any]) -> Iterator[ChaosFinding]:
        status, placed = self._batch.status, self._placed
        self._tally.batches[status] += 1
        allowed = {"completed"} if not placed.cancelled else set()
        if placed.cancel_requested:
            allowed.add("cancelled")
        if placed.order.short and not placed.cancelled:
            allowed.add("expired")
        if status not in allowed:
            yield self._finding(
                FindingKind.WRONG, f"is {status}, but can only be {' or '.join(sorted(allowed))}"
            )
        for code in {_code(line) for line in never}:
            if _NEVER_RAN[code] != status:
                yield self._finding(FindingKind.WRONG, f"is {status}, but has lines with {code}")

    def _completed(self, line: Any) -> Iterator[ChaosFinding]:
        ordered, keys = self._ordered(line), self._keys.get(_number(line), {})
        if ordered is None:
            return
        if ordered.bad:
            yield self._finding(FindingKind.WRONG, f"line {ordered.custom_id} was refused and yet completed")
            return
        attempt = self._attempt_of(line)
        if attempt not in keys or not keys[attempt].runs:
            yield self._finding(
                FindingKind.WRONG, f"line {ordered.custom_id} was answered, but not by the upstream"
            )
            return
        answer = msgspec.json.decode(answer_to(inputs.URL, keys[attempt].body))
        given = dict(line["response"]["body"])
        padding = given.pop("padding", "")
        whole = not padding or (len(padding) == padding.count("x") and len(padding) in PADDINGS)
        if given != answer or not whole or line["response"]["status_code"] != 200:
            yield self._finding(FindingKind.WRONG, f"line {ordered.custom_id} has the answer of another one")

    def _failed(self, line: Any) -> Iterator[ChaosFinding]:
        ordered, keys = self._ordered(line), self._keys.get(_number(line), {})
        if ordered is None:
            return
        if line["response"] is not None:
            status, attempt = line["response"]["status_code"], self._attempt_of(line)
            if attempt not in keys or not keys[attempt].statuses[status]:
                yield self._finding(
                    FindingKind.WRONG, f"line {ordered.custom_id}: the upstream never answered {status}"
                )
            elif status != 400 and attempt != ATTEMPTS:
                yield self._finding(
                    FindingKind.WRONG, f"line {ordered.custom_id} was abandoned at attempt {attempt}"
                )
            return
        if _code(line) in _TOO_LARGE and any(entry.events[LedgerEvent.OVERSIZED] for entry in keys.values()):
            return
        last = keys.get(ATTEMPTS)
        silences = _SILENCES.get(_code(line), ())
        if last is None or not any(last.events[event] for event in silences):
            yield self._finding(
                FindingKind.WRONG,
                f"line {ordered.custom_id} failed with {_code(line)}, which is not in the ledger",
            )

    def _runs(self) -> Iterator[ChaosFinding]:
        """Check the requests that the upstream received for this batch."""
        for number, attempts in self._keys.items():
            ordered = self._lines[number - 1] if 1 <= number <= len(self._lines) else None
            if ordered is None:
                yield self._finding(
                    FindingKind.WRONG, f"the upstream received line {number}, which does not exist"
                )
                continue
            body = msgspec.json.encode(ordered.body)
            for attempt, entry in sorted(attempts.items()):
                self._tally.requests += entry.requests
                self._tally.runs += entry.runs
                self._tally.resent += entry.requests - 1
                self._tally.rule_broken += entry.forgotten > 0
                where = f"line {ordered.custom_id}, attempt {attempt}"
                if entry.twice:
                    yield self._finding(FindingKind.DOUBLED, f"{where}: run {entry.runs} times under one key")
                if entry.strange or entry.body != body:
                    yield self._finding(FindingKind.WRONG, f"{where}: sent with another body")
                if attempt > ATTEMPTS:
                    yield self._finding(FindingKind.WRONG, f"{where}: more attempts than allowed")
                if attempt > 1 and attempt - 1 not in attempts:
                    yield self._finding(FindingKind.WRONG, f"{where}: the attempt before was never sent")
                elif attempt > 1 and not attempts[attempt - 1].spent:
                    yield self._finding(FindingKind.DOUBLED, f"{where}: the attempt before had not failed")
            self._tally.attempts += len(attempts) - 1

    def _ordered(self, line: Any) -> Line | None:
        """Find the ordered line. None if it was not ordered; another check reports that."""
        number = _number(line)
        ordered = self._lines[number - 1] if 1 <= number <= len(self._lines) else None
        return ordered if ordered is not None and ordered.custom_id == line["custom_id"] else None

    def _attempt_of(self, line: Any) -> int:
        """The answered attempt, from the key in the answer's request id; 0 if the key is not this line's."""
        batch, _, rest = line["response"]["request_id"].partition("-")
        number, _, attempt = rest.partition("-")
        mine = batch == self._batch.id.hex and number == str(_number(line)) and attempt.isdigit()
        return int(attempt) if mine else 0

    def _finding(self, kind: FindingKind, what: str) -> ChaosFinding:
        return ChaosFinding(kind, f"{self._placed.order.name} ({self._batch.id})", what)


def _parsed(lines: bytes) -> list[Any]:
    return [msgspec.json.decode(line) for line in lines.splitlines()]


def _number(line: Any) -> int:
    """The line's number in its file, which is the end of its id: `batch_req_…_17`."""
    number = str(line["id"]).rpartition("_")[2]
    return int(number) if number.isdigit() else 0


def _code(line: Any) -> str:
    return "" if line["error"] is None else str(line["error"]["code"])
