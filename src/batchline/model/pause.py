"""Why a rule has paused a batch."""

import msgspec


class PauseReason(msgspec.Struct, frozen=True):
    # As in `Batch.paused_by`.
    rule: str
    # The limit of that rule: lines, dollars or tokens. None: a sample has none.
    threshold: float | None
