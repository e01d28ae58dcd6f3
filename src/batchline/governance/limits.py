"""Whether so many more fit: the limits of all together, and those of each user.

What is pending was counted under the limits' locks, so what is let in here fits exactly.
"""

import math

import msgspec

from batchline.config.settings import LimitSettings
from batchline.governance.errors import LimitReached, TooLarge
from batchline.store.limits import Counted, Measured

# How long to wait for others' batches to end, where nobody can say how long it takes.
_WAIT = 30


def check(limits: LimitSettings, now: Measured, *, children: int, held: int = 0, parents: int = 1) -> None:
    """Whether so many more fit. `held` are those of the same batch that no wait will make fewer; a batch
    that is there already (`parents` 0) has no cooldown either."""
    max_children = limits.user_pending_children if now.max_children is None else now.max_children
    max_parents = limits.user_pending_parents if now.max_parents is None else now.max_parents
    if not now.exempt and held + children > max_children:
        raise TooLarge(
            f"The batch would have {held + children} children, and at most {max_children} of yours may"
            " be pending at once: no wait will let it in. Make it smaller, or ask for a higher limit.",
            param="items",
        )
    if now.all_parents + parents > limits.max_pending_parents:
        raise _full(
            "global_pending_parents", now.all_parents, limits.max_pending_parents, "batches of all users"
        )
    if now.exempt:
        return
    if parents and now.parents + parents > max_parents:
        raise _full("user_pending_parents", now.parents, max_parents, "of your batches")
    if parents:
        _check_cooldown(limits, now)
    if now.children + children > max_children:
        raise _full("user_pending_children", now.children, max_children, "children of your batches")


def check_retried(limits: LimitSettings, now: Measured, children: int) -> None:
    """A batch that runs again is pending as any other, but nothing new: so without cooldown."""
    check(limits, msgspec.structs.replace(now, since_last=None), children=children)


def share_of_requests(limits: LimitSettings, *, alone: bool) -> int:
    """Requests of one kind that one user may make in a minute; all of them where there is no other user."""
    if alone:
        return limits.requests_per_minute
    return math.ceil(limits.requests_per_minute * limits.user_requests_percent / 100)


def requests_exceeded(limits: LimitSettings, counted: Counted, share: int) -> LimitReached | None:
    """The error for a request that is one too many in this minute: of its user, or of all users."""
    if counted.mine > share:
        message = f"You may make {share} requests of this kind per minute."
        return LimitReached("user_requests_per_minute", counted.mine, share, counted.left, message)
    maximum = limits.requests_per_minute
    if counted.everybody is not None and counted.everybody > maximum:
        message = f"All users together may make {maximum} requests of this kind per minute."
        return LimitReached("global_requests_per_minute", counted.everybody, maximum, counted.left, message)
    return None


def _check_cooldown(limits: LimitSettings, now: Measured) -> None:
    cooldown = limits.cooldown_seconds if now.cooldown is None else now.cooldown
    if now.since_last is None or now.since_last >= cooldown:
        return
    left = cooldown - now.since_last
    raise LimitReached(
        "user_cooldown",
        int(now.since_last),
        cooldown,
        left,
        f"There are {cooldown} s between two submissions; try again in {math.ceil(left)} s.",
    )


def _full(limit_type: str, current: int, maximum: int, what: str) -> LimitReached:
    return LimitReached(
        limit_type, current, maximum, _WAIT, f"Too much is pending: {current} {what}, of at most {maximum}."
    )
