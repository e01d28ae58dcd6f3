"""What a contestant does in a contest. Only the standard library: every contestant's Python imports this."""

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


class Contestant(Protocol):
    """Made with the URL of a database of its own."""

    async def install(self) -> None:
        """Make its tables."""

    async def open(self) -> None:
        """Connect, to accept items."""

    async def accept(self, items: Sequence[Payload]) -> None:
        """Take items in, durably, in its fastest way."""

    async def work(self, handler: Handler, concurrency: int | None, member: int) -> None:
        """Be a worker until killed: so many items at once, or as many as suit it best. Workers that run at
        the same time have different numbers."""


class Running:
    """The handler of this process, for contestants that find their handlers by import."""

    handler: Handler
