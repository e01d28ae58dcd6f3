"""The one configuration object, and the one place for defaults."""

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """How a worker behaves. Times are in seconds."""

    concurrency: int = 64
    # A worker that is killed costs its batches at most this long.
    lease: float = 15.0
    # An idle worker asks again after this long, then twice as long, up to the most.
    poll_least: float = 0.75
    poll_most: float = 15.0
    # A settle goes out with this many verdicts, or after this long, whichever comes first.
    settle_most: int = 500
    settle_after: float = 0.02
    # Claimed work is kept for about this long at the measured rate, and never more than the most.
    buffer_seconds: float = 2.0
    buffer_most: int = 10_000
    # Leave when nothing is left to do.
    drain: bool = False
    # Take no more work after this long; what is in flight then has the grace time to finish.
    max_seconds: float | None = None
    grace: float = 10.0

    @property
    def renew_every(self) -> float:
        return self.lease / 3

    @property
    def fence_after(self) -> float:
        """Since the last renewal that succeeded: stop sending well before others may take over."""
        return self.lease * 0.8


@dataclass(frozen=True, slots=True)
class Settings:
    """Where everything is, and how the worker behaves."""

    data_dir: Path
    # None: the embedded PostgreSQL under data_dir.
    database: str | None = None
    worker: WorkerSettings = field(default_factory=WorkerSettings)

    @property
    def objects_dir(self) -> Path:
        return self.data_dir / "objects"
