"""Which service wakes up for which event."""

from typing import Any, cast
from unittest.mock import Mock

import pytest
from msgspec.structs import replace

from batchline.model import Batch, PollResult, Settled
from batchline.model.ids import new_id
from batchline.store.events import Event
from batchline.worker.notification_router import NotificationRouter

BATCH = new_id()
NOTHING = PollResult(
    claimable=False, finalizable=False, maintenance_due=False, next_due=None, next_free=None, news=False
)


class Producers(list[Any]):
    """One producer, and its claimer."""

    def __init__(self) -> None:
        super().__init__([Mock()])
        self.claimers = [Mock(name="claimer")]


def a_router() -> NotificationRouter:
    router = NotificationRouter(on_ended=None)
    router.producers = cast(Any, Producers())
    for name in ("poller", "finalizer", "outbox", "hooks", "maintenance", "bulk", "canceller", "relays"):
        setattr(router, name, Mock(name=name))
    router.retries = Mock()
    return router


def woken(router: NotificationRouter) -> set[str]:
    services = {
        "claimer": router.producers.claimers[0],
        "poller": router.poller,
        "finalizer": router.finalizer,
        "outbox": router.outbox,
        "hooks": router.hooks,
        "maintenance": router.maintenance,
        "bulk": router.bulk,
        "canceller": router.canceller,
    }
    return {name for name, service in services.items() if cast(Mock, service).wake.called}


@pytest.mark.parametrize("batch_id", [None, BATCH])
def test_new_work_is_announced_to_every_claimer(batch_id: Any) -> None:
    router = a_router()
    router.heard(Event("open" if batch_id else "listening", batch_id))
    cast(Mock, router.producers.claimers[0]).announce.assert_called_once_with(batch_id)
    assert woken(router) == set()


def test_items_of_a_closed_batch_are_given_back_and_a_poll_looks_whether_it_can_end() -> None:
    router = a_router()
    router.heard(Event("closed", BATCH))
    cast(Any, router.producers[0]).dispatcher.give_back.assert_called_once_with(BATCH)
    assert woken(router) == {"poller"}


def test_the_end_of_a_batch_wakes_the_outbox() -> None:
    router = a_router()
    router.heard(Event("ended", BATCH))
    assert woken(router) == {"outbox"}
    other = a_router()
    other.ended(cast(Batch, Mock(finished=7, total=7)))
    assert woken(other) == {"outbox"}


def test_the_end_of_a_batch_without_all_results_wakes_who_cancels_its_tasks() -> None:
    router = a_router()
    router.ended(cast(Batch, Mock(finished=6, total=7)))
    assert woken(router) == {"outbox", "canceller"}


def test_deliveries_that_another_worker_made_wake_the_hooks() -> None:
    router = a_router()
    router.heard(Event("hook", BATCH))
    assert woken(router) == {"hooks"}


@pytest.mark.parametrize("kind", ["changed", "action"])
def test_a_changed_batch_and_a_new_action_make_the_worker_poll(kind: str) -> None:
    router = a_router()
    router.heard(Event(kind, BATCH))
    assert woken(router) == {"poller"}


def test_a_new_concurrency_goes_to_the_producers_that_hold_lines_of_the_batch() -> None:
    router = a_router()
    buffer = cast(Any, router.producers[0]).buffer
    buffer.batch_limits.return_value = {BATCH: None}
    router.found(replace(NOTHING, changed=[BATCH, new_id()], limits=[3, 4]))
    buffer.change_limit.assert_called_once_with(BATCH, 3)


@pytest.mark.parametrize(
    ("field", "services"),
    [
        ("claimable", {"claimer"}),
        ("finalizable", {"finalizer"}),
        ("maintenance_due", {"maintenance", "canceller"}),
        ("news", {"outbox"}),
        ("hooks_due", {"hooks"}),
        ("actions_due", {"bulk"}),
    ],
)
def test_a_poll_wakes_only_those_who_have_something_to_do(field: str, services: set[str]) -> None:
    router = a_router()
    router.found(replace(NOTHING, **{field: True}))
    assert woken(router) == services


@pytest.mark.parametrize(
    ("finished", "closing", "expected"),
    [(False, False, set()), (True, False, {"finalizer"}), (False, True, {"poller"})],
)
def test_a_settle_wakes_who_ends_the_batch(finished: bool, closing: bool, expected: set[str]) -> None:
    router = a_router()
    router.settled([Settled(BATCH, 1, finished, closing)], earliest_retry=2.0)
    assert woken(router) == expected
    cast(Mock, router.retries).expect.assert_called_once_with(2.0)


def test_a_retry_that_is_due_wakes_claimers_and_the_poller() -> None:
    router = a_router()
    router.retry_due()
    assert woken(router) == {"claimer", "poller"}


def test_a_claim_that_found_items_makes_the_poller_poll_soon() -> None:
    router = a_router()
    router.claimed()
    cast(Mock, router.poller).reset.assert_called_once_with()
    assert woken(router) == set()
