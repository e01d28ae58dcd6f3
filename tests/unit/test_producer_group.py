"""Which producers of a group may claim, and what becomes of lines that belong to another upstream."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import cast

from msgspec.structs import replace

from batchline.model import Deferred, Item, Verdict
from batchline.store.spans import Scope
from batchline.worker.context import ProducerContext
from batchline.worker.producer import Producer, ProducerScope
from batchline.worker.producer_group import ProducerGroup
from tests.support.http_executor import an_item


@dataclass
class EagerProducer:
    """Always wants lines."""

    of: ProducerScope
    available: bool = True
    on_trial: bool = False
    wants_lines: bool = True
    rest: float = 0.0
    held: int = 0
    escalated: list[str] = field(default_factory=list)

    def watch(self) -> None:
        return

    def set_active(self, active: bool) -> None:
        self.wants_lines = active


def a_group(*names: str) -> tuple[ProducerGroup, list[EagerProducer], list[Verdict]]:
    verdicts: list[Verdict] = []
    context = SimpleNamespace(settler=SimpleNamespace(add=verdicts.append), clock=lambda: 0.0)
    producers = [EagerProducer(ProducerScope(Scope(), 8, f"http://{name}", name=name)) for name in names]
    group = ProducerGroup("model", cast(ProducerContext, context), lambda _: None)
    group.add(cast(list[Producer], producers))
    return group, producers, verdicts


def sent_to(name: str) -> Item:
    item = an_item(None)
    return replace(item, claim=replace(item.claim, sent_to=name))


def test_an_upstream_on_trial_does_not_hold_up_the_others() -> None:
    group, (sound, tried), _ = a_group("a", "b")
    tried.available = False
    group.refresh()
    for _ in range(20):
        group.claimed(cast(Producer, sound), 8, 8)
    tried.available = tried.on_trial = True
    tried.held = 2
    group.refresh()
    assert group.allowed(cast(Producer, tried)) == 0, "its line has no answer yet"
    assert group.allowed(cast(Producer, sound)) != 0
    tried.on_trial = False
    assert group.allowed(cast(Producer, sound)) == 0, "now it may catch up"


def test_lines_of_an_upstream_that_is_away_come_back_when_it_may_be_back() -> None:
    group, (sound, away), verdicts = a_group("a", "b")
    away.available = False
    for away.rest in (0.5, 30.0):
        group._own(cast(Producer, sound), [sent_to("b")])
    assert [verdict.delay for verdict in verdicts if isinstance(verdict, Deferred)] == [2.0, 30.0]
