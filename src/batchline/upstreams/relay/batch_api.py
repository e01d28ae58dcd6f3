"""The protocol of a provider's batch API: requests, states and outputs."""

from collections.abc import AsyncIterator
from enum import Enum, auto
from typing import Protocol

import msgspec

from batchline.upstreams.relay.connection import RelayConnection


class ChunkOrder(msgspec.Struct, frozen=True):
    """What a provider is told of a chunk. `key` is its id, `created_at` Unix time. `refused` are batches over
    it that the provider has refused as a whole."""

    key: str
    url: str
    created_at: float
    file_id: str | None = None
    refused: tuple[str, ...] = ()

    @property
    def creation_key(self) -> str:
        """The Idempotency-Key of a creation: another one after each refusal."""
        return f"batchline-{self.key}" + (f"-{len(self.refused)}" if self.refused else "")

    def line_key(self, ordinal: int) -> str:
        """The custom_id of a line at the provider. It names the chunk: no output is taken for that of
        another."""
        return f"{self.key}-{ordinal}"


class LineProblem(msgspec.Struct, frozen=True):
    """Why the provider has refused a chunk. `line` counts from 1; None: it is not about one line."""

    line: int | None
    code: str
    message: str


class ProviderBatch(msgspec.Struct, frozen=True):
    """What a provider says of a batch. `outcome` is None while it works on it."""

    outcome: str | None
    # Where the outputs are.
    outputs: tuple[str, ...] = ()
    # Why it has refused the whole batch. None of its lines has run then.
    problems: tuple[LineProblem, ...] = ()
    # Lines that have ended, for people.
    finished: int = 0


class OutputKind(Enum):
    # There is an HTTP answer, good or bad.
    ANSWERED = auto()
    # There is none, and another attempt may help.
    FAILED = auto()
    # The provider did not run it in time.
    EXPIRED = auto()
    # The batch was cancelled before it ran.
    CANCELLED = auto()


class OutputLine(msgspec.Struct, frozen=True):
    key: str
    kind: OutputKind
    status: int = 0
    request_id: str | None = None
    body: bytes = b""
    code: str = ""
    message: str = ""


class UnreadableOutput(ValueError):
    """A line of an output is not what the API says."""


class BatchApi(Protocol):
    # The path of its batches.
    batches: str
    max_lines: int
    max_bytes: int
    # Bytes of a line beyond its body, at most.
    overhead: int
    # Lines are uploaded as a file before the batch is created; else they are part of its creation.
    uploads: bool
    # A batch that was created without an answer can be found.
    searchable: bool

    def runs(self, url: str) -> bool:
        """Whether lines for this url can be sent."""
        ...

    def line(self, order: ChunkOrder, ordinal: int, body: bytes) -> bytes: ...

    async def upload(
        self, connection: RelayConnection, order: ChunkOrder, lines: AsyncIterator[bytes]
    ) -> str:
        """The id of the file."""
        ...

    async def create(
        self, connection: RelayConnection, order: ChunkOrder, lines: AsyncIterator[bytes]
    ) -> str:
        """The id of the batch."""
        ...

    async def find(self, connection: RelayConnection, order: ChunkOrder) -> str | None:
        """The id of a batch that was created before; None: there is none."""
        ...

    async def state(self, connection: RelayConnection, batch: str) -> ProviderBatch: ...

    async def cancel(self, connection: RelayConnection, batch: str) -> None: ...

    async def delete(self, connection: RelayConnection, batch: str | None, file_id: str | None) -> None:
        """Delete what the provider keeps of a chunk that is done."""
        ...

    def read(self, line: bytes) -> OutputLine:
        """Raises UnreadableOutput."""
        ...
