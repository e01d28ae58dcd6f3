"""More routing keys than may be open take turns."""

from dataclasses import dataclass, field
from typing import cast

from batchline.worker.producer import Producer
from batchline.worker.producer_group import ProducerGroup
from batchline.worker.producers import MAX_OPEN, OpenKeys


@dataclass
class BusyGroup:
    """The producers of a key that always has work."""

    key: str
    idle: bool = False
    retired: bool = False
    available: bool = True
    busy_at: float = 0.0
    producers: list[Producer] = field(default_factory=lambda: [cast(Producer, LimitlessProducer())])

    def retire(self) -> None:
        self.retired = True


@dataclass
class LimitlessProducer:
    max_tasks: int | None = None


class Keys:
    def __init__(self) -> None:
        self.now = 0.0
        self.closed: list[str] = []
        self.open = OpenKeys(lambda: self.now, lambda group: self.closed.append(group.key))
        self.groups: dict[str, BusyGroup] = {}

    def add(self, key: str) -> BusyGroup:
        group = self.groups[key] = BusyGroup(key)
        self.open.add(cast(ProducerGroup, group))
        return group

    def end(self, group: BusyGroup) -> None:
        group.idle = True
        self.open.rest(cast(ProducerGroup, group))


def test_each_of_100_busy_keys_is_open_sooner_or_later() -> None:
    keys, waiting = Keys(), [f"model-{number}" for number in range(100)]
    seen: set[str] = set()
    for _ in range(1000):
        keys.now += 1.0
        if keys.open.has_room():
            key = waiting.pop(0)
            keys.add(key)
            seen.add(key)
        for group in list(keys.groups.values()):
            if group.retired:
                # Its last line is done, and it has more: the finder will find it again.
                keys.end(group)
                del keys.groups[group.key]
                waiting.append(group.key)
        assert len(keys.groups) <= MAX_OPEN + MAX_OPEN // 4
    assert len(seen) == 100


def test_a_key_that_is_idle_makes_room_first() -> None:
    keys = Keys()
    groups = [keys.add(str(number)) for number in range(MAX_OPEN)]
    groups[3].idle = True
    assert keys.open.has_room()
    assert keys.closed == ["3"]
    assert not any(group.retired for group in groups)


def test_no_key_is_retired_right_after_it_was_opened() -> None:
    keys = Keys()
    groups = [keys.add(str(number)) for number in range(MAX_OPEN + MAX_OPEN // 4)]
    assert not keys.open.has_room()
    assert not any(group.retired for group in groups)
    keys.now = 10.0
    assert not keys.open.has_room()
    assert [group.key for group in groups if group.retired] == ["0"]


def test_a_key_without_work_is_closed_and_one_whose_upstream_is_away_is_kept() -> None:
    keys = Keys()
    away, done = keys.add("away"), keys.add("done")
    away.available = False
    keys.end(away)
    keys.end(done)
    assert keys.closed == ["done"], "a finder would claim lines of the other one, and give them back"


def test_a_key_whose_upstream_is_away_does_not_keep_others_waiting_while_many_are_open() -> None:
    keys, opened = Keys(), list[str]()
    for number in range(MAX_OPEN - 1):
        keys.add(f"busy-{number}")
    # As a finder would find them, one after the other.
    waiting = ["away", "second", "third"]
    for _ in range(60):
        keys.now += 0.01
        found = next((key for key in waiting if key not in keys.open.keys), None)
        if found is not None and keys.open.has_room():
            opened.append(found)
            group = keys.add(found)
            if found == "away":
                group.available = False
                keys.end(group)
    assert opened == ["away", "second", "third"]


def test_keys_whose_upstreams_are_away_take_turns_with_others() -> None:
    keys = Keys()
    for number in range(MAX_OPEN + MAX_OPEN // 4):
        away = keys.add(str(number))
        away.available = False
        keys.end(away)
    keys.now = 10.0
    assert not keys.open.has_room()
    assert keys.closed == ["0"]
    assert keys.open.has_room()


def test_a_key_with_several_upstreams_is_kept_for_a_while() -> None:
    keys = Keys()
    group = keys.add("shared")
    group.producers.append(group.producers[0])
    keys.end(group)
    assert keys.closed == []
    keys.now = 100.0
    keys.end(group)
    assert keys.closed == ["shared"]
