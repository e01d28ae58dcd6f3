"""Which upstream may have worked on a line, if its model has several, and how often one crashed that had it.

A claim writes the upstream to its spans before a byte is sent, so it is known whatever happens to the worker.
"""

from collections.abc import Callable, Iterator
from typing import TypeAlias

import pytest

from batchline.model import Deferred, Item, Retried, SubmissionUnknown, Verdict
from tests.support import scenes
from tests.support.scenes import Hand, Stage

Judge: TypeAlias = Callable[[Item], Verdict]


@pytest.fixture(scope="module")
def stage_url(server_url: str, template: str) -> Iterator[str]:
    with scenes.database(server_url, template) as url:
        yield url


@pytest.fixture
def stage(stage_url: str) -> Iterator[Stage]:
    with Stage(stage_url) as stage:
        yield stage


def marks(stage: Stage) -> list[tuple[str | None, int]]:
    """The upstream and the size of each span."""
    return stage.rows("SELECT sent_to, batchline.span_size(outstanding) FROM batchline.spans ORDER BY id")


def taken(hand: Hand, limit: int, sender: str | None) -> list[Item]:
    return hand.items(hand.claim(limit, sender=sender))


def test_a_claim_writes_its_upstream_before_anything_is_sent(stage: Stage) -> None:
    batch = stage.batch(10)
    hand = stage.hand()

    (claim,) = hand.claim(4, sender="near")
    assert hand.claim_new(3, batch.id, sender="far") == 3

    assert (claim.sent_to, claim.sender, claim.tenant) == (None, "near", "acme")
    assert marks(stage) == [("near", 4), ("far", 3)]


def test_a_line_of_a_lost_worker_stays_with_its_upstream(stage: Stage) -> None:
    stage.batch(4)
    first = stage.hand()
    first.claim(4, sender="near")
    stage.lease(first.id, -1)

    (claim,) = stage.hand().claim(4, sender="far")

    assert (claim.sent_to, claim.sender) == ("near", "far")
    assert marks(stage) == [("near", 4)]


def test_each_part_of_a_split_span_keeps_the_upstream(stage: Stage) -> None:
    stage.batch(6)
    first = stage.hand()
    first.claim(6, sender="near")
    stage.lease(first.id, -1)

    (claim,) = stage.hand().claim(2, sender="far")

    assert (claim.sent_to, claim.size) == ("near", 2)
    assert sorted(marks(stage)) == [("near", 2), ("near", 4)]


def test_the_rest_of_a_span_that_was_sent_nowhere_stays_open_to_any(stage: Stage) -> None:
    batch = stage.batch(6)
    stage.span(batch, range(6))

    (claim,) = stage.hand().claim(2, sender="near")

    assert claim.sent_to is None
    assert sorted(marks(stage), key=str) == [("near", 2), (None, 4)]


@pytest.mark.parametrize(
    ("verdict", "left"),
    [
        (lambda item: Deferred(item), None),
        (lambda item: Deferred(item, sent_to="near"), "near"),
        (lambda item: Retried(item, "http_500", "", 0.0), None),
        (lambda item: Retried(item, "timeout", "", 0.0, sent_to="near"), "near"),
        (lambda item: SubmissionUnknown(item, 0.0), "near"),
    ],
    ids=["never sent", "sent and spared", "answered with an error", "timed out", "submission unknown"],
)
def test_a_verdict_says_whether_a_line_stays(stage: Stage, verdict: Judge, left: str | None) -> None:
    stage.batch(1)
    hand = stage.hand()
    (item,) = taken(hand, 1, "near")

    hand.settle([verdict(item)])

    assert marks(stage) == [(left, 1)]
    assert not stage.broken()


def test_a_deferral_forgets_no_upstream_of_before(stage: Stage) -> None:
    stage.batch(1)
    hand = stage.hand()
    (item,) = taken(hand, 1, "near")
    hand.settle([Retried(item, "timeout", "", 0.0, sent_to="near")])
    (item,) = taken(hand, 1, "near")

    hand.settle([Deferred(item)])

    assert marks(stage) == [("near", 1)]


def test_lines_for_different_upstreams_wait_in_spans_of_their_own(stage: Stage) -> None:
    stage.batch(4)
    hand = stage.hand()
    first, second, third, _ = taken(hand, 4, "near")

    hand.settle(
        [
            Retried(first, "timeout", "", 9.0, sent_to="near"),
            Retried(second, "timeout", "", 9.0, sent_to="near"),
            Retried(third, "http_500", "", 9.0),
        ]
    )

    assert sorted(marks(stage), key=str) == [("near", 1), ("near", 2), (None, 1)]
    assert not stage.broken()


def test_crashes_are_counted_and_stay_until_the_line_is_answered(stage: Stage) -> None:
    stage.batch(2)
    hand = stage.hand()
    for before in (0, 1, 2):
        items = hand.take(2)
        assert {item.claim.crashes for item in items} == {before}
        hand.settle([Deferred(item, crashed=True) for item in items])

    items = hand.take(2)
    hand.settle([Deferred(items[0]), Retried(items[1], "http_500", "", 0.0)])

    crashes = stage.rows("SELECT attempt, crashes FROM batchline.spans ORDER BY attempt")
    assert crashes == [(1, 3), (2, 0)]
    assert not stage.broken()


def test_crashes_survive_a_lost_worker_and_a_split(stage: Stage) -> None:
    stage.batch(3)
    first = stage.hand()
    first.settle([Deferred(item, crashed=True) for item in first.take(3)])
    first.claim(3)
    stage.lease(first.id, -1)

    (claim,) = stage.hand().claim(1)

    assert claim.crashes == 1
    assert stage.rows("SELECT crashes FROM batchline.spans") == [(1,), (1,)]


def test_a_task_keeps_where_its_lines_were_sent(stage: Stage) -> None:
    batch = stage.batch(2)
    stage.span(batch, range(2), task="task-1")

    (claim,) = stage.hand().claim(2, sender="near", max_tasks=10)

    assert (claim.task_id, claim.sent_to, claim.sender) == ("task-1", None, "near")
    assert marks(stage) == [("near", 2)]


def test_two_claims_at_once_mark_what_each_has_taken(stage: Stage) -> None:
    """The second waits for the lane that the first holds."""
    stage.batch(8)
    near, far = stage.hand(), stage.hand()
    with near.holding():
        near.claim(4, sender="near")
        waiting = stage.meanwhile(far, lambda: far.claim(4, sender="far"))
        assert waiting.waits()
    waiting.result()

    held = stage.rows("SELECT worker_id, sent_to FROM batchline.spans")
    assert sorted(held) == sorted([(near.id, "near"), (far.id, "far")])
    assert not stage.broken()


def test_a_worker_that_knows_of_one_upstream_marks_nothing(stage: Stage) -> None:
    stage.batch(2)
    stage.hand().claim(2)

    assert marks(stage) == [(None, 2)]


def release(hand: Hand, *, sent: bool) -> None:
    hand.run("release", {"worker": hand.id, "spans": None, "sent": sent})


@pytest.mark.parametrize(("sent", "mark"), [(False, None), (True, "near")])
def test_lines_released_unsent_have_no_mark_of_their_claim(
    stage: Stage, sent: bool, mark: str | None
) -> None:
    stage.batch(4)
    hand = stage.hand()
    hand.claim(4, sender="near")

    release(hand, sent=sent)

    assert marks(stage) == [(mark, 4)]


@pytest.mark.parametrize("taken", [2, 4])
def test_returned_lines_released_unsent_have_the_mark_that_they_had(stage: Stage, taken: int) -> None:
    """Of a whole span, and of a part of one."""
    stage.batch(4)
    hand = stage.hand()
    hand.claim(4)
    release(hand, sent=False)

    hand.claim(taken, sender="near")
    release(hand, sent=False)
    assert {mark for mark, _ in marks(stage)} == {None}

    hand.claim(taken, sender="near")
    release(hand, sent=True)
    hand.claim(4, sender="far")
    release(hand, sent=False)
    assert ("near", taken) in marks(stage)
    assert all(mark != "far" for mark, _ in marks(stage))


def test_lines_of_a_lost_worker_keep_its_mark_when_they_are_released_unsent(stage: Stage) -> None:
    stage.batch(4)
    lost, hand = stage.hand(), stage.hand()
    lost.claim(4, sender="near")
    stage.lease(lost.id, -1)
    hand.claim(4, sender="far")

    release(hand, sent=False)

    assert marks(stage) == [("near", 4)]
