"""Checks limits: the global ones and those of each user. Counts requests and reports current levels.

Pending work is counted under the limit locks, so the checks are exact.
"""

import math
from dataclasses import dataclass
from datetime import datetime

import msgspec

from batchline.config.settings import LimitSettings
from batchline.governance.access import Actor
from batchline.governance.errors import LimitReached, TooLarge
from batchline.model import RequestKind
from batchline.store import limits as stored
from batchline.store.limits import Counted, Measured
from batchline.store.session import Session

# Seconds to wait for other batches to end. Nobody can predict how long that takes.
_WAIT = 30


def check(
    limits: LimitSettings,
    now: Measured,
    *,
    children: int,
    held: int = 0,
    parents: int = 1,
    decisions: bool = False,
) -> None:
    """Raise TooLarge or LimitReached unless that many more children fit.

    `held` counts children of the same batch that stay pending however long the caller waits. An existing
    batch (`parents` 0) has no cooldown. A batch of `decisions` is not refused because of other users.
    """
    max_parents, max_children = _maxima(limits, now)
    if not now.exempt and held + children > max_children:
        raise TooLarge(
            f"The batch would have {held + children} children, but at most {max_children} of your children"
            " may be pending at once. Submit a smaller batch, or ask an admin for a higher limit.",
            param="items",
        )
    if now.all_parents + parents > limits.max_pending_parents and not decisions:
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
    """As `check` for a batch that runs again: it is pending once more, but has no cooldown."""
    check(limits, msgspec.structs.replace(now, since_last=None), children=children)


async def count_request(
    session: Session, limits: LimitSettings, actor: Actor, kind: RequestKind
) -> LimitReached | None:
    """Count one more request of this minute; return the error if it is over a limit.

    Admins are never refused because of other users, only over their own share.
    """
    share = share_of_requests(limits, alone=actor.alone)
    counted = await stored.count_request(session, actor.tenant, actor.user, kind, share)
    if actor.role.administers:
        counted = msgspec.structs.replace(counted, everybody=None)
    return requests_exceeded(limits, counted, share)


def share_of_requests(limits: LimitSettings, *, alone: bool) -> int:
    """How many requests one user may make per minute; all of them if there is no other user."""
    if alone:
        return limits.requests_per_minute
    return math.ceil(limits.requests_per_minute * limits.user_requests_percent / 100)


def requests_exceeded(limits: LimitSettings, counted: Counted, share: int) -> LimitReached | None:
    """The error for a request that is over the limit of its user, or of all users."""
    if counted.mine > share:
        message = f"You may make {share} requests of this kind per minute."
        return LimitReached("user_requests_per_minute", counted.mine, share, counted.left, message)
    maximum = limits.requests_per_minute
    if counted.everybody is not None and counted.everybody > maximum:
        message = f"All users together may make {maximum} requests of this kind per minute."
        return LimitReached("global_requests_per_minute", counted.everybody, maximum, counted.left, message)
    return None


@dataclass(frozen=True, slots=True)
class Level:
    """How much of a limit is used."""

    current_value: int
    max_value: int


@dataclass(frozen=True, slots=True)
class UserLevels:
    user_id: str
    pending_parents: Level
    pending_children: Level
    cooldown_seconds: int
    cooldown_left: int
    exempt: bool
    exempt_until: datetime | None
    has_own_limits: bool


@dataclass(frozen=True, slots=True)
class GlobalLevels:
    pending_parents: Level
    reads_per_minute: Level
    writes_per_minute: Level


async def levels(
    session: Session, tenant: str, limits: LimitSettings
) -> tuple[GlobalLevels, list[UserLevels]]:
    """The global levels, and those of every user with pending work or other limits than the defaults.

    They are measured without locks: for display, not for checks.
    """
    window = await stored.requests_now(session)
    overall = await stored.measure(session, tenant, "")
    exempt = {
        each.user_id: each.expires_at for each in await stored.exemptions(session, tenant) if each.active
    }
    users = [
        _user_levels(user, await stored.measure(session, tenant, user), limits, exempt.get(user))
        for user in await stored.users(session, tenant)
    ]
    return GlobalLevels(
        pending_parents=Level(overall.all_parents, limits.max_pending_parents),
        reads_per_minute=Level(window.reads, limits.requests_per_minute),
        writes_per_minute=Level(window.writes, limits.requests_per_minute),
    ), users


def _user_levels(
    user: str, now: Measured, limits: LimitSettings, exempt_until: datetime | None
) -> UserLevels:
    max_parents, max_children = _maxima(limits, now)
    cooldown = _cooldown(limits, now)
    return UserLevels(
        user_id=user,
        pending_parents=Level(now.parents, max_parents),
        pending_children=Level(now.children, max_children),
        cooldown_seconds=cooldown,
        cooldown_left=0 if now.since_last is None else max(0, round(cooldown - now.since_last)),
        exempt=now.exempt,
        exempt_until=exempt_until,
        has_own_limits=now.max_parents is not None,
    )


def _maxima(limits: LimitSettings, now: Measured) -> tuple[int, int]:
    """How many batches and children the user may have pending."""
    return (
        limits.user_pending_parents if now.max_parents is None else now.max_parents,
        limits.user_pending_children if now.max_children is None else now.max_children,
    )


def _cooldown(limits: LimitSettings, now: Measured) -> int:
    return limits.cooldown_seconds if now.cooldown is None else now.cooldown


def _check_cooldown(limits: LimitSettings, now: Measured) -> None:
    cooldown = _cooldown(limits, now)
    if now.since_last is None or now.since_last >= cooldown:
        return
    left = cooldown - now.since_last
    raise LimitReached(
        "user_cooldown",
        int(now.since_last),
        cooldown,
        left,
        f"You must wait {cooldown} s between two submissions. Try again in {math.ceil(left)} s.",
    )


def _full(limit_type: str, current: int, maximum: int, what: str) -> LimitReached:
    message = f"{current} {what} are pending, of at most {maximum}. Try again when some have ended."
    return LimitReached(limit_type, current, maximum, _WAIT, message)
