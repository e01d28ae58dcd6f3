"""One request from its admission to its answer."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from batchline.simulate.ledger import Executed, Ledger
from batchline.simulate.recipes import Recipe


class Requester(Protocol):
    """The connection that waits for the answer to one request."""

    @property
    def gone(self) -> bool: ...

    def answer(self, status: int, body: bytes, headers: bytes = b"") -> None: ...

    def stream(self, content_type: bytes, chunks: Iterator[bytes], headers: bytes = b"") -> None:
        """Answer 200 with chunks, as fast as they are read."""

    def hang(self) -> None:
        """Never answer."""

    def hang_up(self) -> None:
        """Close the connection without an answer."""


@dataclass(slots=True, eq=False)
class Execution:
    ledger: Ledger
    key: bytes | None
    recipe: Recipe
    record: Executed | None
    callers: list[Requester]
    to_drop: Requester | None = None
    prompt: bytes = b""
    """What the prefix cache compares; empty without one."""
    refused: bool = False
    """It takes a slot for a while and is then refused."""

    @property
    def abandoned(self) -> bool:
        """All who would get its answer have disconnected."""
        return all(caller.gone for caller in self.callers) and (self.to_drop is None or self.to_drop.gone)
