"""The finder of routing keys claims one line at a time where lines are too large to be read together."""

from typing import cast

from batchline.model import Claim, Item
from batchline.store.spans import Scope
from batchline.worker.producer_group import ProducerGroup
from batchline.worker.producers import Discovery, KeyFinder, OpenKeys


def no_producer(first: Claim) -> ProducerGroup:
    raise AssertionError("nothing was found that could be run")


def test_after_lines_that_were_all_too_large_one_is_claimed_whatever_its_size() -> None:
    open_keys = OpenKeys(lambda: 0.0, lambda group: None)
    finder = KeyFinder(Discovery(Scope(), 64), open_keys, no_producer, lambda items: None)
    first = finder.wanted()
    assert first > 1
    assert finder.room_for(first) is not None, "many lines are read within a bound"

    finder.put([], [cast(Item, object())])

    assert finder.wanted() == 1
    assert finder.room_for(1) is None, "or a single large line would never run"
    finder.put([], [])
    assert finder.wanted() == first
