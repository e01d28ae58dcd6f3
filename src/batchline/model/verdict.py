"""The verdict on one attempt at an item."""

from typing import TypeAlias
from uuid import UUID

import msgspec

from batchline.model.emission import Emission
from batchline.model.line import Item
from batchline.model.sink import SinkRow
from batchline.model.usage import NO_USAGE, Usage


class Completed(msgspec.Struct, frozen=True):
    """The item is done; `output` is its finished output line."""

    item: Item
    status_code: int
    output: bytes
    usage: Usage = NO_USAGE
    # Added to its batch in the statement that stores this verdict.
    emitted: tuple[Emission, ...] = ()
    # Inserted into a table of the user's in the transaction that stores this verdict.
    sink: SinkRow | None = None


class Failed(msgspec.Struct, frozen=True):
    """The item has failed for good; `output` is its finished error line."""

    item: Item
    output: bytes
    status_code: int | None = None
    # An upstream may charge for an answer that is no success.
    usage: Usage = NO_USAGE


class Retried(msgspec.Struct, frozen=True):
    """The attempt failed; another one may start `delay` seconds from now, on the database's clock."""

    item: Item
    error_code: str
    message: str
    delay: float
    usage: Usage = NO_USAGE
    # The attempt's error line, if its answer is kept. It is stored instead of the message.
    output: bytes = b""
    # The upstream that may still work on it, so that it goes nowhere else; None: any may have it.
    sent_to: str | None = None


class Deferred(msgspec.Struct, frozen=True):
    """This was no attempt: the request never left, or its time-out does not count.

    Try it again `delay` seconds from now, under the same idempotency key.
    """

    item: Item
    delay: float = 0.0
    # The upstream that may still work on it, so that it goes nowhere else; None: as before.
    sent_to: str | None = None
    # The upstream crashed while it had the item.
    crashed: bool = False


class TaskParked(msgspec.Struct, frozen=True):
    """A provider has accepted the item as task `task_id` and works on it by itself.

    The item leaves this worker. After `delay` seconds a worker runs it again, with the task in
    `item.claim.task_id`: its executor polls the task instead of sending the item again, and parks
    it again while the task runs. An item stays parked across crashes, and ends with its batch at the latest.
    """

    item: Item
    task_id: str
    delay: float = 30.0
    # False: this was a deferral, and nothing was learned about the task or the handler.
    polled: bool = True


class SubmissionUnknown(msgspec.Struct, frozen=True):
    """The item was submitted to a provider and the answer was lost, so the provider may work on it.

    After `delay` seconds a worker runs it again, under the same idempotency key and with
    `item.claim.submission` set: its executor looks for the task at the provider before it submits again.
    """

    item: Item
    delay: float = 60.0


Verdict: TypeAlias = Completed | Failed | Retried | Deferred | TaskParked | SubmissionUnknown


class TimedOut(msgspec.Struct, frozen=True):
    """No complete answer came in time. Not a verdict yet: the executor cannot know whether too much was in
    flight. The worker makes it a Retried or a Failed if it counts as an attempt, a Deferred if not."""

    item: Item
    error_code: str
    message: str
    delay: float


Ran: TypeAlias = Verdict | TimedOut


class Settled(msgspec.Struct, frozen=True):
    """What a settle did to one batch."""

    batch_id: UUID
    ended: int
    finished: bool
    closing: bool
    # Whether this settle has paused it because of its failures.
    paused: bool = False
    # Whether all lines that may run have ended, so that the next step may begin.
    step_ended: bool = False
    # Whether lines were added to later stages.
    emitted: bool = False
