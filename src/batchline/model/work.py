"""The result of a poll."""

import msgspec


class PollResult(msgspec.Struct, frozen=True):
    """What an idle worker learns from one poll."""

    claimable: bool
    finalizable: bool
    maintenance_due: bool
    next_due: float | None
    # Seconds until a span that was claimed before may be claimed again; None: there is none.
    next_free: float | None
    # An event to deliver, or a message to send to a webhook.
    news: bool
    # A hook of this worker to run.
    hooks_due: bool = False
