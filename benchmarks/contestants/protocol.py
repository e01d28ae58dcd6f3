"""The interface of a contestant. Standard library only: every contestant's Python imports this."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypedDict


class Payload(TypedDict):
    """One item, about 300 bytes as JSON."""

    nth: int
    text: str


Handler = Callable[[int], Awaitable[None]]

_TEXT = ("what is said here matters little " * 9)[:275]


def payloads(count: int) -> list[Payload]:
    return [{"nth": nth, "text": _TEXT} for nth in range(count)]


class QueueContestant(Protocol):
    """A contestant, created with the URL of its database."""

    async def install(self) -> None:
        """Create its tables."""

    async def open(self) -> None:
        """Connect to accept items."""

    async def accept(self, items: Sequence[Payload]) -> None:
        """Accept items durably, in its fastest way."""

    async def work(self, handler: Handler, concurrency: int | None, member: int) -> None:
        """Run a worker until killed, with `concurrency` items at once, or its own choice if None.

        Workers that run at the same time have different `member` numbers.
        """


class Running:
    """The handler of this process, for contestants that import their handlers."""

    handler: Handler
