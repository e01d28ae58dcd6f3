"""The verdict on an item that its upstream had when it crashed."""

from batchline.batches.output import failed_line
from batchline.model import Deferred, Failed, Item, Verdict
from batchline.upstreams.quarantine import ALONE_FROM


def crashed(item: Item, delay: float) -> Verdict:
    """Another try after `delay` seconds, which is no attempt. The item fails if it was alone both at this
    crash and at the one before. It goes to no other upstream, so that it does not crash that one, too."""
    before = item.claim.crashes
    if before <= ALONE_FROM:
        return Deferred(item, delay, sent_to=item.claim.stays_with, crashed=True)
    message = (
        f"The upstream crashed {before + 1} times while it had this line, the last"
        f" {before + 1 - ALONE_FROM} times while it had no other line of this worker."
    )
    return Failed(item, failed_line(item, "upstream_crashed", message))
