"""What an idle worker learns from one poll."""

import msgspec


class PollResult(msgspec.Struct, frozen=True):
    """What an idle worker learns from one poll."""

    claimable: bool
    finalizable: bool
    maintenance_due: bool
    next_due: float | None
    # Seconds until something that was handed out before may be claimed again; None: there is no such thing.
    next_free: float | None
    # An event to tell of, or a message for a webhook to send.
    news: bool
