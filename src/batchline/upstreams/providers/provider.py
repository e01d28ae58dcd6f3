"""The protocol of a provider: paths, bodies and answers."""

from enum import Enum, auto
from typing import Protocol

import msgspec


class UnsubmittableItem(ValueError):
    """The item cannot be submitted. The message is for a person."""


class Progress(Enum):
    RUNNING = auto()
    SUCCEEDED = auto()
    FAILED = auto()


class TaskState(msgspec.Struct, frozen=True):
    """What a provider says of a task."""

    progress: Progress
    # Unix time at which the provider accepted it; None if it does not say.
    created_at: float | None = None
    # Why it failed, and whether another attempt may succeed.
    code: str = ""
    message: str = ""
    passing: bool = False


class Provider(Protocol):
    # The url of the lines that it runs. Tasks are below it.
    path: str

    def submission(self, key: str, body: bytes) -> bytes:
        """The body that submits an item under an idempotency key. Raises UnsubmittableItem."""
        ...

    def carries_key(self, body: bytes) -> bool:
        """Whether the submission of this item can be found by its key. Raises UnsubmittableItem."""
        ...

    def accepted(self, answer: bytes) -> str | None:
        """The task's id in the answer to a submission; None if there is none. Raises ValueError if it cannot
        be stored."""
        ...

    def search(self, key: str) -> str:
        """The query that lists the tasks that were submitted under this key."""
        ...

    def found(self, key: str, answer: bytes) -> str | None:
        """The task that was submitted under this key, in the answer to a search; None if there is none.
        Raises ValueError if the answer does not tell."""
        ...

    def state(self, answer: bytes) -> TaskState | None:
        """The state of a task; None if the answer cannot be read."""
        ...
