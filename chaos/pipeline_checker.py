"""Check a pipeline against its files and counters: each item one result, each emission once.

An item that must succeed or fail has done so, with its own value or reason. One that is not refused may only
have failed because its workers died three times; then nothing is expected of what it would have emitted.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import msgspec

from chaos.checker import ChaosFinding, CheckedBatch, FindingKind, Tally
from chaos.pipeline_app import REFUSED, StageItem
from chaos.pipeline_clients import first_items
from chaos.schedule import PipelineOrder

_DIED = "worker_died"
_MAXIMUM = 20


@dataclass(slots=True)
class PlacedPipeline:
    """An order of a pipeline, and its batch once that exists."""

    order: PipelineOrder
    batch_id: UUID | None = None


def check_pipeline(placed: PlacedPipeline, batch: CheckedBatch | None, tally: Tally) -> list[ChaosFinding]:
    name = placed.order.name
    if batch is None:
        return [ChaosFinding(FindingKind.LOST, name, f"batch {placed.batch_id} does not exist")]
    tally.batches[batch.status] += 1
    tally.completed += batch.completed
    tally.failed += batch.failed
    found = [ChaosFinding(kind, name, what) for kind, what in _Pipeline(placed.order, batch).findings()]
    return found[:_MAXIMUM]


@dataclass(slots=True)
class _Pipeline:
    order: PipelineOrder
    batch: CheckedBatch
    results: dict[str, Any] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)

    def findings(self) -> Iterator[tuple[FindingKind, str]]:
        output, failed = _parsed(self.batch.output), _parsed(self.batch.errors)
        times = Counter(line["custom_id"] for line in (*output, *failed))
        self.results = {line["custom_id"]: line["response"]["body"] for line in output}
        self.errors = {line["custom_id"]: line["error"]["code"] for line in failed}
        for key, number in times.items():
            if number > 1:
                yield FindingKind.DOUBLED, f"item {key} has {number} results"
        expected: set[str] = set()
        for item in first_items(self.order):
            yield from self._item(item, expected)
        for key in times.keys() - expected:
            yield FindingKind.DOUBLED, f"item {key} must not have been emitted"
        yield from self._counters(len(output), len(failed))

    def _item(self, item: StageItem, expected: set[str]) -> Iterator[tuple[FindingKind, str]]:
        expected.add(item.key)
        if item.key in self.results:
            if item.refused or self.results[item.key] != item.value:
                yield FindingKind.WRONG, f"item {item.key} has the result {self.results[item.key]!r}"
            for child in item.children():
                yield from self._item(child, expected)
        elif item.key not in self.errors:
            yield FindingKind.LOST, f"item {item.key} has no result"
        elif (code := self.errors[item.key]) != _DIED and (code != REFUSED or not item.refused):
            yield FindingKind.WRONG, f"item {item.key} has failed with {code}"

    def _counters(self, completed: int, failed: int) -> Iterator[tuple[FindingKind, str]]:
        batch = self.batch
        if batch.status != "completed":
            yield FindingKind.WRONG, f"is {batch.status}, but can only be completed"
        counted = (batch.total, batch.completed, batch.failed)
        if counted != (completed + failed, completed, failed):
            yield FindingKind.WRONG, f"counted {counted}, found {completed} and {failed}"


def _parsed(content: bytes) -> list[Any]:
    return [msgspec.json.decode(line) for line in content.splitlines()]
