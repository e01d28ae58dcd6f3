"""Lines that were in flight when their upstream crashed: how many may be sent to it again at once.

A line that was in flight at one crash is a suspect. Few suspects are in flight at a time, so the next crash
leaves few lines that were in flight at both. These run alone, one after the other: while one of them is in
flight, this worker sends nothing else to that upstream, and no other worker has such a line in flight. See
docs/decisions/0028-poison-lines.md.
"""

from collections.abc import Awaitable, Callable

MAX_SUSPECTS = 8
ALONE_FROM = 2
"""Lines that were in flight at so many crashes run alone."""


async def _always() -> bool:
    return True


class Quarantine:
    """Suspects are admitted before they get a slot. The one that runs alone reserves the upstream when it has
    one: before that, lines that hold the slots could not finish."""

    def __init__(self) -> None:
        self._suspects = 0
        self._alone = False
        self._watchers: list[Callable[[], None]] = []
        # Whether no other worker runs a line alone. Asked before each of them is sent.
        self.is_ours: Callable[[], Awaitable[bool]] = _always
        # Suspects that producers hold until they are admitted.
        self.waiting = 0
        # The line that runs alone, by any key.
        self.reserved_by: int | None = None

    @property
    def has_alone(self) -> bool:
        """Whether a line was admitted that runs alone."""
        return self._alone

    @property
    def suspects(self) -> int:
        """Those that wait, and those that were admitted."""
        return self.waiting + self._suspects + self._alone

    def admit(self, crashes: int) -> bool:
        """Whether a line with so many crashes may be sent; if so, `leave` must follow."""
        if crashes >= ALONE_FROM:
            if self._alone:
                return False
            self._alone = True
        elif self._suspects >= MAX_SUSPECTS:
            return False
        else:
            self._suspects += 1
        return True

    def leave(self, crashes: int) -> None:
        """A line that was admitted has ended, or was given back."""
        if crashes >= ALONE_FROM:
            self._alone = False
        else:
            self._suspects -= 1
        for callback in tuple(self._watchers):
            callback()

    def watch(self, callback: Callable[[], None]) -> None:
        """Call back when more suspects may be sent."""
        self._watchers.append(callback)

    def unwatch(self, callback: Callable[[], None]) -> None:
        self._watchers.remove(callback)
