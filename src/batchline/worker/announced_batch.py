"""What the producers of one worker tell each other about a batch that was announced to all of them."""

from dataclasses import dataclass
from uuid import UUID


@dataclass(slots=True)
class AnnouncedBatch:
    # One producer has claimed from this batch, which has lines for no other. So the others need not look.
    taken: UUID | None = None
