"""Every ordered pair of acts on a batch with fed lanes, with the first of them paused wherever it can be.

As in test_interleavings.py: whatever the pair and the point, both end without a deadlock, the invariant
holds, the batch can be brought to its end with all that was emitted and appended, and it begins to be
finalized exactly once.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from uuid import UUID

import msgspec
import pytest

from batchline.model import Item, ItemCounts, Settled
from tests.support import scenes
from tests.support.scenes import Hand, Stage, Staged, completed, emitting, failed, retry

# In `ending`, `accepting` and `held`, two hands hold the last two items, of a fed lane. In `last`, the second
# hand has settled its item already, and comes late.
STATES = ("running", "paused", "cancelling", "ending", "last", "accepting", "held")
Cast = tuple[Stage, Hand, Hand, Hand]


@pytest.fixture(scope="module")
def cast(server_url: str, template: str) -> Iterator[Cast]:
    """One stage and three connections for all of them."""
    with scenes.database(server_url, template) as url, Stage(url) as stage:
        yield stage, stage.hand(), stage.hand(), stage.hand()


@dataclass
class Pipeline:
    """A batch with an ordinary lane and two fed ones, of which two hands hold a span each."""

    stage: Stage
    batch: Staged
    held: dict[UUID, list[Item]]
    begun: list[str] = field(default_factory=list)
    # Lines that somebody was told are added.
    added: int = 0

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


def claim(scene: Pipeline, hand: Hand) -> Then:
    hand.claim(5, batch=scene.batch.id)
    return lambda: None


def settle(scene: Pipeline, hand: Hand) -> Then:
    return settled(scene, hand, hand.settle([completed(item) for item in scene.held[hand.id]]))


def settle_emitting(scene: Pipeline, hand: Hand) -> Then:
    rows = hand.settle([emitting(item, "third", 2) for item in scene.held[hand.id]])
    scene.added += 2 * sum(row.ended for row in rows)
    return settled(scene, hand, rows)


def settle_into_its_own_stage(scene: Pipeline, hand: Hand) -> Then:
    rows = hand.settle([emitting(item, "second") for item in scene.held[hand.id]])
    scene.added += sum(row.ended for row in rows)
    return settled(scene, hand, rows)


def settle_failures(scene: Pipeline, hand: Hand) -> Then:
    return settled(scene, hand, hand.settle([failed(item) for item in scene.held[hand.id]]))


def settle_retries(scene: Pipeline, hand: Hand) -> Then:
    return settled(scene, hand, hand.settle([retry(item) for item in scene.held[hand.id]]))


def settled(scene: Pipeline, hand: Hand, rows: list[Settled]) -> Then:
    finished, closing = any(row.finished for row in rows), any(row.closing for row in rows)
    scene.note("settle", finished)
    return lambda: scene.afterwards(hand, closing and not finished)


def park(scene: Pipeline, hand: Hand) -> Then:
    hand.park(scene.held[hand.id], f"task of {hand.id}")
    return lambda: None


def give_back(scene: Pipeline, hand: Hand) -> Then:
    concerned = hand.release()
    return lambda: scene.afterwards(hand, bool(concerned))


def append(scene: Pipeline, hand: Hand) -> Then:
    if hand.append(scene.batch.id, "second", 2) is not None:
        scene.added += 2
    return lambda: None


def release_items(scene: Pipeline, hand: Hand) -> Then:
    released = hand.release_items(scene.batch.id)
    query = "SELECT finalizing_at IS NOT NULL FROM batchline.batches WHERE id = %s"
    frozen = hand.connection.execute(query, [scene.batch.id]).fetchone()
    scene.note("release", released and frozen == (True,))
    return lambda: None


def cancel(scene: Pipeline, hand: Hand) -> Then:
    closed = hand.close(scene.batch.id, "cancel")
    return lambda: scene.afterwards(hand, closed)


def expire(scene: Pipeline, hand: Hand) -> Then:
    closed = hand.close(scene.batch.id, "expire")
    return lambda: scene.afterwards(hand, closed)


def pause(scene: Pipeline, hand: Hand) -> Then:
    hand.close(scene.batch.id, "pause")
    return lambda: None


def resume(scene: Pipeline, hand: Hand) -> Then:
    hand.resume(scene.batch.id)
    return lambda: None


def conclude(scene: Pipeline, hand: Hand) -> Then:
    scene.note("conclude", hand.conclude(scene.batch.id))
    return lambda: None


Act = Callable[[Pipeline, Hand], Then]
ACTS: tuple[Act, ...] = (
    claim,
    settle,
    settle_emitting,
    settle_into_its_own_stage,
    settle_failures,
    settle_retries,
    park,
    give_back,
    append,
    release_items,
    cancel,
    expire,
    pause,
    resume,
    conclude,
)

# Every row of the scene that somebody could wait for: a table and which of its rows.
POINTS = (("spans", 0), ("spans", 1), ("spans", 2), ("batches", 0), ("lanes", 0), ("lanes", 1), ("lanes", 2))
Point = tuple[str, int]
_POINTS: dict[tuple[Act, str], list[Point]] = {}


def set_the_scene(stage: Stage, first: Hand, second: Hand, other: Hand, state: str) -> Pipeline:
    stage.clear()
    batch = stage.pipeline(5, "second", "third", accepting=state in ("accepting", "held"))
    # The lanes lie on disk in the order in which nobody may lock them.
    for flag in ("false", "true"):
        stage.db.execute(f"UPDATE batchline.lanes SET open = {flag} WHERE id = {batch.lanes[0]}".encode())
    hands = (first.renamed(), second.renamed())
    if state in ("running", "paused", "cancelling"):
        held = {hand.id: hand.take(1, batch=batch.id) for hand in hands}
        other.renamed().settle([emitting(item, "second") for item in other.take(2, batch=batch.id)])
        if state != "running":
            other.close(batch.id, "cancel" if state == "cancelling" else "pause")
        return Pipeline(stage, batch, held)
    items = other.renamed().take(5, batch=batch.id)
    other.settle([emitting(item, "second") for item in items[:2]])
    other.settle([completed(item) for item in items[2:]])
    held = {hand.id: hand.take(1, batch=batch.id) for hand in hands}
    if state == "last":
        second.settle([completed(item) for item in held[second.id]])
    elif state == "held":
        stage.db.execute("UPDATE batchline.batches SET held_at = now()")
        stage.db.execute("UPDATE batchline.lanes SET open = false")
    return Pipeline(stage, batch, held)


def bring_to_its_end(scene: Pipeline, first: Hand, second: Hand, other: Hand) -> None:
    """As workers and people would: give back, go on, run what there is, conclude what was closed."""
    for hand in (first, second):
        give_back(scene, hand)()
    other.resume(scene.batch.id)
    release_items(scene, other)()
    while items := other.renamed().take(100, batch=scene.batch.id):
        settled(scene, other, other.settle([completed(item) for item in items]))()
    conclude(scene, other)()


def check(scene: Pipeline, total: int, when: str) -> None:
    """Nothing contradicts the design, and what was added is there, once."""
    assert not scene.stage.broken(), when
    counts = scene.stage.counts(scene.batch)
    add_up(counts)
    assert counts.total == total + scene.added, when


def add_up(counts: ItemCounts) -> None:
    """Whoever is at work, each item is counted in one state."""
    total, *states = msgspec.structs.astuple(counts)
    assert min(states) >= 0, counts
    assert sum(states) == total, counts


def check_its_end(scene: Pipeline, total: int, when: str) -> None:
    check(scene, total, f"when the batch was brought to its end, {when}")
    assert scene.stage.finalizing(scene.batch), f"the batch is stuck, {when}"
    assert len(scene.begun) == 1, f"to be finalized once, but begun by {scene.begun}, {when}"


@pytest.mark.parametrize("state", ["running", "cancelling", "ending", "last", "accepting"])
@pytest.mark.parametrize("second", ACTS, ids=lambda act: act.__name__)
@pytest.mark.parametrize("first", ACTS, ids=lambda act: act.__name__)
def test_two_acts_at_once(cast: Cast, first: Act, second: Act, state: str) -> None:
    stage, anna, bert, other = cast
    scene = set_the_scene(stage, anna, bert, other, state)
    total = stage.counts(scene.batch).total

    with anna.holding():
        then_anna = first(scene, anna)
        add_up(stage.counts(scene.batch))
        current_actor = stage.meanwhile(bert, lambda: second(scene, bert))
        current_actor.waits()
        add_up(stage.counts(scene.batch))
    then_bert = current_actor.result()
    check(scene, total, "right after both had committed")
    then_anna()
    then_bert()
    check(scene, total, "after both had done what follows from it")
    bring_to_its_end(scene, anna, bert, other)
    check_its_end(scene, total, "one after the other")


def lock(hand: Hand, point: Point) -> None:
    table, nth = point
    nth_id = f"SELECT id FROM batchline.{table} ORDER BY id OFFSET {nth} LIMIT 1"
    row = f"SELECT FROM batchline.{table} WHERE id = ({nth_id}) FOR UPDATE"
    hand.connection.execute(row.encode())


def lock_points(cast: Cast, act: Act, state: str) -> list[Point]:
    """Where the act waits if somebody has locked just that row."""
    if (act, state) not in _POINTS:
        _POINTS[act, state] = [point for point in POINTS if waits_at(cast, act, state, point)]
    return _POINTS[act, state]


def waits_at(cast: Cast, act: Act, state: str, point: Point) -> bool:
    stage, anna, bert, other = cast
    scene = set_the_scene(stage, anna, bert, other, state)
    with other.holding():
        lock(other, point)
        current_actor = stage.meanwhile(anna, lambda: act(scene, anna))
        waits = current_actor.waits()
    current_actor.result()
    return waits


WAITS_FOR: dict[str, set[str]] = {
    "claim": {"lanes"},
    # The one that ends the batch writes the cursors of fed lanes back, which no claim locks.
    "settle": {"spans", "batches", "lanes"},
    # An emission locks no lane: nobody else moves the cursor of a fed lane without the batch row.
    "settle_emitting": {"spans", "batches"},
    "settle_into_its_own_stage": {"spans", "batches"},
    "settle_failures": {"spans", "batches", "lanes"},
    "settle_retries": {"spans", "batches"},
    "park": {"spans"},
    "give_back": {"spans"},
    "append": {"batches"},
    "release_items": {"batches", "lanes"},
    "cancel": {"batches", "lanes"},
    "expire": {"batches", "lanes"},
    "pause": {"batches", "lanes"},
    "resume": {"batches", "lanes"},
    "conclude": {"spans", "batches"},
}


@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.__name__)
def test_an_act_waits_for_what_the_design_says_and_for_nothing_else(cast: Cast, act: Act) -> None:
    """The table of locks in docs/design.md; and the points at which acts are paused are really there."""
    found = {table for state in STATES for table, _ in lock_points(cast, act, state)}
    assert found == WAITS_FOR[act.__name__]


@pytest.mark.parametrize("state", ["last", "accepting", "cancelling"])
@pytest.mark.parametrize("second", ACTS, ids=lambda act: act.__name__)
@pytest.mark.parametrize("first", ACTS, ids=lambda act: act.__name__)
def test_an_act_while_another_is_paused_at_each_of_its_lock_points(
    cast: Cast, first: Act, second: Act, state: str
) -> None:
    stage, anna, bert, other = cast
    for point in lock_points(cast, first, state):
        scene = set_the_scene(stage, anna, bert, other, state)
        total = stage.counts(scene.batch).total
        with other.holding():
            lock(other, point)
            pausing = stage.meanwhile(anna, partial(first, scene, anna))
            assert pausing.waits()
            current_actor = stage.meanwhile(bert, partial(second, scene, bert))
            current_actor.waits()
            add_up(stage.counts(scene.batch))
        then_anna, then_bert = pausing.result(), current_actor.result()
        check(scene, total, f"right after both had committed, paused at {point}")
        then_anna()
        then_bert()
        bring_to_its_end(scene, anna, bert, other)
        check_its_end(scene, total, f"paused at {point}")


# The end of a batch


@pytest.mark.parametrize("emits", [True, False], ids=["one emits", "none emits"])
def test_two_settles_of_the_last_two_items_end_the_batch_once(cast: Cast, emits: bool) -> None:
    """The second one to get the batch row sees what the first has counted and emitted."""
    stage, anna, bert, other = cast
    scene = set_the_scene(stage, anna, bert, other, "ending")
    with anna.holding():
        (settle_emitting if emits else settle)(scene, anna)
        last = stage.meanwhile(bert, lambda: settle(scene, bert))
        assert last.waits()
    last.result()
    assert scene.begun == ([] if emits else ["settle"])
    assert stage.finalizing(scene.batch) is not emits
    check(scene, 7, "after both")


def test_a_release_that_waits_for_the_last_settle_ends_the_batch(cast: Cast) -> None:
    stage, anna, bert, other = cast
    scene = set_the_scene(stage, anna, bert, other, "accepting")
    settle(scene, bert)
    with anna.holding():
        settle(scene, anna)
        releasing = stage.meanwhile(other, lambda: release_items(scene, other))
        assert releasing.waits()
    releasing.result()
    assert scene.begun == ["release"]


def test_a_settle_that_waits_for_the_release_ends_the_batch(cast: Cast) -> None:
    stage, anna, bert, other = cast
    scene = set_the_scene(stage, anna, bert, other, "accepting")
    settle(scene, bert)
    with other.holding():
        release_items(scene, other)
        settling = stage.meanwhile(anna, lambda: settle(scene, anna))
        assert settling.waits()
    settling.result()
    assert scene.begun == ["settle"]


# Deleting a batch


@pytest.mark.parametrize("state", ["running", "accepting", "cancelling"])
@pytest.mark.parametrize("first", [True, False], ids=["deleted first", "deleted second"])
@pytest.mark.parametrize("act", ACTS, ids=lambda act: act.__name__)
def test_an_act_on_a_batch_that_is_deleted_leaves_nothing(
    cast: Cast, act: Act, first: bool, state: str
) -> None:
    """No deadlock, and whatever a worker still stores for the batch is deleted with it. Emitted lines are the
    file's, and go with it."""
    stage, anna, bert, other = cast
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
        late = hand.settle([emitting(item, "third") for item in scene.held[hand.id]])
        assert late == [], "the batch is gone"
    other.drop_deleted_lanes()
    assert stage.left_over() == {}
