"""Every ordered pair of acts on one lane, with the first of them paused wherever it can be.

It is paused when it is done and not yet committed, and before that at each of its lock points: at every row
for whose lock it waits, while it has the locks that it takes before that one. Which rows these are is found
out, not written down: each row of the scene is locked by a third party, and whoever waits has a point there.
Whatever the pair and the point, both end without a deadlock, the invariant holds, the batch can be brought
to its end, and it begins to be finalized exactly once.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from uuid import UUID

import msgspec
import pytest

from batchline.model import Item, ItemCounts, Settled
from tests.support import scenes
from tests.support.scenes import Hand, Stage, Staged, completed, failed, retry

SETTINGS = '{"max_failed": 0, "spending": {"max_cost": 0}, "steps": {"sizes": ["3"], "growth": 1.0}}'
STATES = ("running", "paused", "cancelling", "stepped")


@pytest.fixture(scope="module")
def theatre(server_url: str, template: str) -> Iterator[tuple[Stage, Hand, Hand, Hand]]:
    """One stage and three connections for all of them."""
    with scenes.database(server_url, template) as url, Stage(url) as stage:
        yield stage, stage.hand(), stage.hand(), stage.hand()


@dataclass
class Scene:
    """A batch of two lanes in some state, of which two hands hold a span each and one span is free."""

    stage: Stage
    batch: Staged
    held: dict[UUID, list[Item]]
    begun: list[str] = field(default_factory=list)

    def note(self, who: str, begun: bool) -> None:
        """Somebody has been told that the batch is to be finalized."""
        if begun:
            self.begun.append(who)

    def afterwards(self, hand: Hand, closing: bool) -> None:
        """What a worker does when the batch that it touched is closing."""
        if closing:
            self.note("conclude", hand.conclude(self.batch.id))


Then = Callable[[], None]
"""What whoever acted does once its transaction is over."""


def claim(scene: Scene, hand: Hand) -> Then:
    hand.claim(5, batch=scene.batch.id)
    return lambda: None


def claim_new(scene: Scene, hand: Hand) -> Then:
    hand.claim_new(5, scene.batch.id)
    return lambda: None


def settle(scene: Scene, hand: Hand) -> Then:
    return settled(scene, hand, hand.settle([completed(item) for item in scene.held[hand.id]]))


def settle_retries(scene: Scene, hand: Hand) -> Then:
    return settled(scene, hand, hand.settle([retry(item) for item in scene.held[hand.id]]))


def settle_failures(scene: Scene, hand: Hand) -> Then:
    """The first failure pauses the batch."""
    return settled(scene, hand, hand.settle([failed(item) for item in scene.held[hand.id]]))


def settled(scene: Scene, hand: Hand, rows: list[Settled]) -> Then:
    finished, closing = any(row.finished for row in rows), any(row.closing for row in rows)
    scene.note("settle", finished)
    return lambda: scene.afterwards(hand, closing and not finished)


def park(scene: Scene, hand: Hand) -> Then:
    hand.park(scene.held[hand.id], f"task of {hand.id}")
    return lambda: None


def release(scene: Scene, hand: Hand) -> Then:
    concerned = hand.release()
    return lambda: scene.afterwards(hand, bool(concerned))


def cancel(scene: Scene, hand: Hand) -> Then:
    closed = hand.close(scene.batch.id, "cancel")
    return lambda: scene.afterwards(hand, closed)


def expire(scene: Scene, hand: Hand) -> Then:
    closed = hand.close(scene.batch.id, "expire")
    return lambda: scene.afterwards(hand, closed)


def pause(scene: Scene, hand: Hand) -> Then:
    hand.close(scene.batch.id, "pause")
    return lambda: None


def resume(scene: Scene, hand: Hand) -> Then:
    hand.resume(scene.batch.id)
    return lambda: None


def change(scene: Scene, hand: Hand) -> Then:
    hand.run("change_batch", scenes.change(scene.batch.id, priority=5, concurrency=1, seconds=7200.0))
    return lambda: None


def pause_at_cap(scene: Scene, hand: Hand) -> Then:
    hand.reserve(scene.batch.id, 1)
    return lambda: None


def begin_step(scene: Scene, hand: Hand) -> Then:
    hand.begin_step(scene.batch.id)
    return lambda: None


def conclude(scene: Scene, hand: Hand) -> Then:
    scene.note("conclude", hand.conclude(scene.batch.id))
    return lambda: None


Act = Callable[[Scene, Hand], Then]
ACTS: tuple[Act, ...] = (
    claim,
    claim_new,
    settle,
    settle_retries,
    settle_failures,
    park,
    release,
    cancel,
    expire,
    pause,
    resume,
    change,
    pause_at_cap,
    begin_step,
    conclude,
)

# Every row of the scene that somebody could wait for: a table and which of its rows.
POINTS = (("spans", 0), ("spans", 1), ("spans", 2), ("batches", 0), ("lanes", 0), ("lanes", 1))
Point = tuple[str, int]
_POINTS: dict[tuple[Act, str], list[Point]] = {}


def set_the_scene(stage: Stage, first: Hand, second: Hand, other: Hand, state: str) -> Scene:
    stage.clear()
    batch = stage.batch(9, 3, settings=SETTINGS)
    # The lanes lie on disk in the order in which nobody may lock them.
    for flag in ("false", "true"):
        stage.db.execute(f"UPDATE batchline.lanes SET open = {flag} WHERE id = {batch.lanes[0]}".encode())
    held = {hand.renamed().id: hand.take(2, batch=batch.id) for hand in (first, second)}
    if state == "stepped":
        # Two of the lines that are left are held back in a span, the others past the cursors; a step is due.
        stage.span(batch, range(4, 6), attempt=2, held_back=True)
        stage.hold_back(batch, step_total=4)
        return Scene(stage, batch, held)
    stage.span(batch, range(4, 8), attempt=2)
    if state == "paused":
        other.close(batch.id, "pause")
    elif state == "cancelling":
        other.close(batch.id, "cancel")
    return Scene(stage, batch, held)


def bring_to_its_end(scene: Scene, first: Hand, second: Hand, other: Hand) -> None:
    """As workers and people would: give back, go on, run what there is, conclude what was closed."""
    for hand in (first, second):
        release(scene, hand)()
    other.resume(scene.batch.id)
    while (items := other.renamed().take(100, batch=scene.batch.id)) or other.begin_step(scene.batch.id):
        settled(scene, other, other.settle([completed(item) for item in items]))()
    conclude(scene, other)()


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("second", ACTS, ids=lambda act: act.__name__)
@pytest.mark.parametrize("first", ACTS, ids=lambda act: act.__name__)
def test_two_acts_at_once(
    theatre: tuple[Stage, Hand, Hand, Hand], first: Act, second: Act, state: str
) -> None:
    stage, anna, bert, other = theatre
    scene = set_the_scene(stage, anna, bert, other, state)

    with anna.holding():
        then_anna = first(scene, anna)
        add_up(stage.counts(scene.batch))
        current_actor = stage.meanwhile(bert, lambda: second(scene, bert))
        current_actor.waits()
        add_up(stage.counts(scene.batch))
    then_bert = current_actor.result()
    assert not stage.broken(), "right after both had committed"
    add_up(stage.counts(scene.batch))
    then_anna()
    add_up(stage.counts(scene.batch))
    then_bert()
    add_up(stage.counts(scene.batch))
    assert not stage.broken(), "after both had done what follows from it"

    bring_to_its_end(scene, anna, bert, other)
    assert not stage.broken(), "when the batch was brought to its end"
    assert stage.finalizing(scene.batch), "the batch is stuck"
    assert len(scene.begun) == 1, f"to be finalized once, but begun by {scene.begun}"


def add_up(counts: ItemCounts) -> None:
    """Whoever is at work, each item is counted in one state."""
    total, *states = msgspec.structs.astuple(counts)
    assert min(states) >= 0, counts
    assert sum(states) == total == 12, counts


def lock(hand: Hand, point: Point) -> None:
    table, nth = point
    nth_id = f"SELECT id FROM batchline.{table} ORDER BY id OFFSET {nth} LIMIT 1"
    row = f"SELECT FROM batchline.{table} WHERE id = ({nth_id}) FOR UPDATE"
    hand.connection.execute(row.encode())


def lock_points(theatre: tuple[Stage, Hand, Hand, Hand], act: Act, state: str) -> list[Point]:
    """Where the act waits if somebody has locked just that row."""
    if (act, state) not in _POINTS:
        _POINTS[act, state] = [point for point in POINTS if waits_at(theatre, act, state, point)]
    return _POINTS[act, state]


def waits_at(theatre: tuple[Stage, Hand, Hand, Hand], act: Act, state: str, point: Point) -> bool:
    stage, anna, bert, other = theatre
    scene = set_the_scene(stage, anna, bert, other, state)
    with other.holding():
        lock(other, point)
        current_actor = stage.meanwhile(anna, lambda: act(scene, anna))
        waits = current_actor.waits()
    current_actor.result()
    return waits


WAITS_FOR: dict[str, set[str]] = {
    "claim": {"lanes"},
    "claim_new": set(),
    "settle": {"spans", "batches"},
    "settle_retries": {"spans", "batches"},
    "settle_failures": {"spans", "batches", "lanes"},
    "park": {"spans"},
    "release": {"spans"},
    "cancel": {"batches", "lanes"},
    "expire": {"batches", "lanes"},
    "pause": {"batches", "lanes"},
    "resume": {"batches", "lanes"},
    "change": {"batches", "lanes"},
    "pause_at_cap": {"batches", "lanes"},
    "begin_step": {"spans", "batches", "lanes"},
    "conclude": {"spans", "batches"},
}


@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.__name__)
def test_an_act_waits_for_what_the_design_says_and_for_nothing_else(
    theatre: tuple[Stage, Hand, Hand, Hand], act: Act
) -> None:
    """The table of locks in docs/design.md; and the points at which acts are paused are really there."""
    found = {table for state in STATES for table, _ in lock_points(theatre, act, state)}
    assert found == WAITS_FOR[act.__name__]


@pytest.mark.parametrize("state", ["running", "cancelling", "stepped"])
@pytest.mark.parametrize("second", ACTS, ids=lambda act: act.__name__)
@pytest.mark.parametrize("first", ACTS, ids=lambda act: act.__name__)
def test_an_act_while_another_is_paused_at_each_of_its_lock_points(
    theatre: tuple[Stage, Hand, Hand, Hand], first: Act, second: Act, state: str
) -> None:
    stage, anna, bert, other = theatre
    for point in lock_points(theatre, first, state):
        scene = set_the_scene(stage, anna, bert, other, state)
        with other.holding():
            lock(other, point)
            pausing = stage.meanwhile(anna, partial(first, scene, anna))
            assert pausing.waits()
            current_actor = stage.meanwhile(bert, partial(second, scene, bert))
            current_actor.waits()
            add_up(stage.counts(scene.batch))
        then_anna, then_bert = pausing.result(), current_actor.result()
        assert not stage.broken(), f"right after both had committed, paused at {point}"
        then_anna()
        then_bert()
        bring_to_its_end(scene, anna, bert, other)
        assert not stage.broken(), f"when the batch was brought to its end, paused at {point}"
        assert stage.finalizing(scene.batch), f"the batch is stuck, paused at {point}"
        assert len(scene.begun) == 1, f"to be finalized once, but begun by {scene.begun}, paused at {point}"


# Deleting a batch


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("first", [True, False], ids=["deleted first", "deleted second"])
@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.__name__)
def test_an_act_on_a_batch_that_is_deleted_leaves_nothing(
    theatre: tuple[Stage, Hand, Hand, Hand], act: Act, first: bool, state: str
) -> None:
    """No deadlock, and whatever a worker still stores for the batch is deleted with it."""
    stage, anna, bert, other = theatre
    scene = set_the_scene(stage, anna, bert, other, state)

    def delete(hand: Hand) -> None:
        assert hand.delete(scene.batch.id)

    with anna.holding():
        then: list[Then] = [lambda: None]
        if first:
            delete(anna)
            current_actor = stage.meanwhile(bert, lambda: then.append(act(scene, bert)))
        else:
            then.append(act(scene, anna))
            current_actor = stage.meanwhile(bert, lambda: delete(bert))
        current_actor.waits()
    current_actor.result()
    for each in then:
        each()
    for hand in (anna, bert):
        assert hand.settle([completed(item) for item in scene.held[hand.id]]) == [], "the batch is gone"
    other.drop_deleted_lanes()
    assert stage.left_over() == {}


def test_results_of_a_settle_that_the_clean_up_waits_for_are_deleted_too(
    theatre: tuple[Stage, Hand, Hand, Hand],
) -> None:
    """The clean-up has begun before the results are committed, so it cannot see them; the next chunk does."""
    stage, anna, bert, other = theatre
    scene = set_the_scene(stage, anna, bert, other, "running")
    bert.release()
    with anna.holding():
        settle(scene, anna)
        deletion = stage.meanwhile(bert, lambda: bert.delete(scene.batch.id))
        assert deletion.waits(), "the settle has a span"
    assert deletion.result()

    scene = set_the_scene(stage, anna, bert, other, "running")
    other.delete_by_hand(scene.batch.id)
    with anna.holding():
        settle(scene, anna)
        cleaning = stage.meanwhile(bert, bert.drop_deleted_lanes)
        assert cleaning.waits(), "the settle has a span"
    cleaning.result()
    assert stage.left_over() == {}
