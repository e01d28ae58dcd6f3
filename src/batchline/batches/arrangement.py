"""How the lines of a new batch are arranged: identical ones are sent once, or all are sent by their prompts.

The transaction that creates the batch does it (`BatchCreation.arrange`). Without these options nothing is
read, so a batch costs the same however many lines it has.
"""

from uuid import UUID

from batchline.model import RunSettings
from batchline.store import files
from batchline.store.session import Session

# A guess at the slowest database. A million lines take some 10 s on a quiet machine.
_SECONDS_PER_LINE = 300e-6


class InvalidArrangement(ValueError):
    """Options that exclude each other; `param` is the name of one of them in the API."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param


def is_arranged(settings: RunSettings) -> bool:
    return settings.dedupe or settings.order is not None


def check(settings: RunSettings) -> None:
    """Raises InvalidArrangement. Steps and samples choose the lines that run first, and so does this."""
    if settings.steps is None:
        return
    if settings.dedupe:
        raise InvalidArrangement("dedupe", "cannot be combined with steps or a sample; leave one of them out")
    if settings.order is not None:
        raise InvalidArrangement("order", "cannot be combined with steps or a sample; leave one of them out")


async def extra_seconds(session: Session, file_id: UUID, settings: RunSettings) -> float:
    """A generous limit for arranging the lines of the file; 0 if nothing is to be arranged."""
    if not is_arranged(settings):
        return 0.0
    file = await files.get(session, file_id)
    return 0.0 if file is None else file.line_count * _SECONDS_PER_LINE
