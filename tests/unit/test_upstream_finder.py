"""The finder of upstreams claims one line at a time where lines are too large to be read together."""

from typing import cast

from batchline.model import Claim, Item
from batchline.store.spans import Scope
from batchline.worker.producer import Producer, ProducerScope
from batchline.worker.producers import OnIdle, UpstreamFinder


def no_producer(first: Claim, on_idle: OnIdle) -> Producer:
    raise AssertionError("nothing was found that could be run")


def test_after_lines_that_were_all_too_large_one_is_claimed_whatever_its_size() -> None:
    closed = list[Producer]()
    finder = UpstreamFinder(ProducerScope(Scope(), 64), no_producer, closed.append)
    first = finder.wanted()
    assert first > 1
    assert finder.room_for(first) is not None, "many lines are read within a bound"

    finder.put([], [cast(Item, object())])

    assert finder.wanted() == 1
    assert finder.room_for(1) is None, "or a single large line would never run"
    finder.put([], [])
    assert finder.wanted() == first
