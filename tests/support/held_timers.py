"""Timers that go off when a test says so. They take the place of an event loop whose timers are real ones.

A test that has to act while something is under way cannot know how long that takes on a busy machine.
"""

import asyncio
from collections.abc import Callable
from functools import partial


class HeldTimers:
    """Has what simulators use of an event loop."""

    def __init__(self) -> None:
        self._held: list[Callable[[], object]] | None = []

    def call_later(self, delay: float, act: Callable[..., object], *args: object) -> None:
        if self._held is None:
            asyncio.get_running_loop().call_soon(act, *args)
        else:
            self._held.append(partial(act, *args))

    def go_off(self) -> None:
        """All that are held now; those that they set are held again."""
        held, self._held = self._held or [], []
        for act in held:
            act()

    def let_go(self) -> None:
        """All that are held, and from now on all others at once."""
        held, self._held = self._held or [], None
        for act in held:
            act()
