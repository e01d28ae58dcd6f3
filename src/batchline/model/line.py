"""Claims, and the items that a worker runs."""

from uuid import UUID

import msgspec

from batchline.model import ids
from batchline.model.batch import RunSettings
from batchline.model.trace import LineTrace


class Claim(msgspec.Struct, frozen=True):
    """A span that a worker holds, with the settings of its lane and batch."""

    span_id: int
    lane_id: int
    batch_id: UUID
    attempt: int
    task_id: str | None
    size: int
    url: str
    model: str
    key: str
    seconds_left: float
    settings: RunSettings
    # Seconds that were left of the worker's lease when this was claimed.
    lease_left: float = 0.0
    # `interrupted` or `unknown`: a provider may have accepted the items already, under this attempt's key.
    submission: str | None = None
    # Attempts from before the batch was retried. The maximum of attempts does not count them.
    attempts_before: int = 0
    # That of its batch: how many of its requests one worker may have in flight; None: no limit.
    concurrency: int | None = None
    # How many workers were lost that held the items. From two on, a Python operation gets them one by one.
    losses: int = 0
    tenant: str = ""
    # The upstream that may have worked on the items before, if their model has several; None: there is none.
    sent_to: str | None = None
    # How often an upstream crashed that had the items.
    crashes: int = 0
    # The upstream that this claim was made for, if the model has several.
    sender: str | None = None
    # Another upstream may run the items although this one may have run them.
    fails_over: bool = False
    # Part of the id of each item. Computed once per claim, because it is used twice per item.
    batch_hex: str = ""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "batch_hex", self.batch_id.hex)

    def log_fields(self) -> dict[str, str | int]:
        return {
            "batch": ids.show(ids.BATCH, self.batch_id),
            "lane": self.lane_id,
            "lines": self.size,
            "attempt": self.attempt,
        }

    @property
    def stays_with(self) -> str | None:
        """The upstream that must get an item again that it may have run; None: any may."""
        return None if self.fails_over else self.sender

    @property
    def attempts_left(self) -> bool:
        """Whether another attempt may follow this one, by the maximum of the settings that it runs under."""
        return self.attempt - self.attempts_before < self.settings.max_attempts


class Stamps(msgspec.Struct, gc=False):
    """When an item was sent and answered, in seconds of time.monotonic; 0: not yet. The only part of an item
    that changes: whoever runs the item notes it here, so that no verdict has to carry it."""

    sent: float = 0.0
    answered: float = 0.0
    # The upstream took no more requests when this one came.
    refused: bool = False


class Item(msgspec.Struct, frozen=True):
    """One line to run. `custom_id` and `body` are unchanged UTF-8."""

    claim: Claim
    ordinal: int
    line_no: int
    custom_id: bytes
    body: bytes
    # Size of a body that is too large to read with other lines; 0: the body is here.
    left_out: int = 0
    stamps: Stamps = msgspec.field(default_factory=Stamps)
    # None: it is not traced.
    trace: LineTrace | None = None

    def log_fields(self) -> dict[str, str | int]:
        """What names it in a log. Nothing of what it says."""
        claim = self.claim
        fields: dict[str, str | int] = {
            "batch": ids.show(ids.BATCH, claim.batch_id),
            "lane": claim.lane_id,
            "ordinal": self.ordinal,
            "attempt": claim.attempt,
            "request": self.request_id,
        }
        return fields if self.trace is None else fields | {"trace_id": f"{self.trace.trace_id:032x}"}

    @property
    def request_id(self) -> str:
        """The permanent id of the item, the same after any crash and retry."""
        return f"batch_req_{self.claim.batch_hex}_{self.line_no}"

    @property
    def idempotency_key(self) -> str:
        """The id of one attempt: a request that is sent again after a crash has the same key."""
        return f"{self.claim.batch_hex}-{self.line_no}-{self.claim.attempt}"
