"""A claimed line on its way through a worker."""

from uuid import UUID

import msgspec

from batchline.model.batch import RunSettings


class Claim(msgspec.Struct, frozen=True):
    """A span in a worker's hands, with what its lane and batch say about running it."""

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
    # Part of the name of each item: made once a claim, because it is asked for twice an item.
    batch_hex: str = ""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "batch_hex", self.batch_id.hex)


class Item(msgspec.Struct, frozen=True):
    """One line to run. `custom_id` and `body` are UTF-8, as they were read."""

    claim: Claim
    ordinal: int
    line_no: int
    custom_id: bytes
    body: bytes
    # How long the body is, where it was too long to be read along with others; 0: it is here.
    left_out: int = 0

    @property
    def request_id(self) -> str:
        """Names the item for ever: the same after any crash and retry."""
        return f"batch_req_{self.claim.batch_hex}_{self.line_no}"

    @property
    def idempotency_key(self) -> str:
        """Names one attempt: what was sent before a crash carries the same key when it is sent again."""
        return f"{self.claim.batch_hex}-{self.line_no}-{self.claim.attempt}"
