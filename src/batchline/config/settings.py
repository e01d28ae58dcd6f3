"""The one configuration object, and the one place for defaults."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DAY = 86_400.0
ANY_MODEL = "*"


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """How a worker behaves. Times are in seconds."""

    concurrency: int = 64
    # A worker that is killed costs its batches at most this long.
    lease: float = 15.0
    # An idle worker asks again after this long, then twice as long, up to the most.
    poll_min: float = 0.75
    poll_max: float = 15.0
    # A settle goes out with this many verdicts, or after this long, or when nothing else is in flight,
    # whichever comes first.
    settle_max: int = 500
    settle_after: float = 0.04
    # Claimed work is kept for about this long at the measured rate, and never more than the most.
    buffer_seconds: float = 2.0
    buffer_max: int = 10_000
    # At most so many bytes go into one settle; a verdict that is larger goes alone.
    settle_max_bytes: int = 16 * 2**20
    # The bytes of requests and answers that are held at once, whatever upstreams answer.
    body_memory: int = 512 * 2**20
    # Leave when nothing is left to do.
    drain: bool = False
    # Take no more work after this long; what is in flight then has the grace time to finish.
    max_seconds: float | None = None
    grace: float = 10.0
    # A worker that stops waits this long for a database that is away, then leaves its answers behind.
    stop_patience: float = 60.0
    # What an ended batch leaves in the database besides its files; None: kept until these are deleted.
    results_retention: float | None = None
    # What an ended governed batch leaves besides its counts: items, results and files.
    operations_retention: float | None = None
    # Webhooks on this machine and in private networks are sent to.
    allow_private_webhooks: bool = False

    @property
    def renew_every(self) -> float:
        return self.lease / 3

    @property
    def fence_after(self) -> float:
        """Since the last renewal that succeeded: stop sending well before others may take over."""
        return self.lease * 0.8


@dataclass(frozen=True, slots=True)
class UpstreamSettings:
    """A model server: where it is, what it serves, and how it is asked. Times are in seconds."""

    name: str
    base_url: str
    # The environment variable that holds its API key; never the key itself.
    api_key_env: str | None = None
    # Exact names; `*` is any model that no upstream names. Empty: it is for operations alone.
    models: tuple[str, ...] = ("*",)
    # Requests in flight at once from one worker.
    concurrency: int = 64
    timeout: float = 600.0
    max_attempts: int = 5


@dataclass(frozen=True, slots=True)
class OperationSettings:
    """An operation as it is written in the settings; the engine makes one of it, or says what is wrong."""

    name: str
    # The name of an upstream.
    upstream: str
    path: str
    method: str = "POST"
    query: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    # None: the item, where the method has a body.
    body: Any = None
    content_type: str = "application/json"
    description: str = ""
    schema: Mapping[str, Any] = field(default_factory=lambda: {"type": "object"})
    largest_batch: int = 100
    max_attempts: int = 3
    approval: str = "never"
    self_approval: bool = False
    redact: tuple[str, ...] = ()
    outcomes: tuple[Mapping[str, Any], ...] = ()
    confirm: str | None = None
    gone_when: str | None = None
    timeout: float = 60.0
    # Where its keys stand, such as `batchline.toml, line 12`; under "" the table itself.
    positions: Mapping[str, str] = field(default_factory=dict, compare=False)

    def position_of(self, key: str) -> str:
        return self.positions.get(key) or self.positions.get("", "the settings")


@dataclass(frozen=True, slots=True)
class PackSettings:
    """Operations that come with the program, as they are wanted here."""

    name: str
    upstream: str
    # For all of the pack's operations, or for some, by name; None: as the pack has it.
    approval: str | Mapping[str, str] | None = None
    largest_batch: Mapping[str, int] = field(default_factory=dict)
    # Of all of them.
    self_approval: bool = False
    position: str = field(default="the settings", compare=False)


@dataclass(frozen=True, slots=True)
class LimitSettings:
    """How much may be pending at once, in two layers: of all together, and of each user."""

    max_pending_parents: int = 100
    # Of all users together: so many reads, and as many writes.
    requests_per_minute: int = 1000
    # How much of that one user may take, in percent.
    user_requests_percent: int = 25
    user_pending_parents: int = 3
    user_pending_children: int = 30
    # Seconds from one submission of a user to the next.
    cooldown_seconds: int = 120
    # Whom to ask who needs more.
    contact_admin: str = "an administrator of this server"


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """What the server allows, and how long it keeps things. Times are in seconds."""

    upstreams: tuple[UpstreamSettings, ...] = ()
    operations: tuple[OperationSettings, ...] = ()
    packs: tuple[PackSettings, ...] = ()
    max_file_bytes: int = 200 * 1024 * 1024
    max_lines: int = 50_000
    max_upload_bytes: int = 8 * 1024**3
    max_part_bytes: int = 64 * 1024 * 1024
    # All but files: what a request may ask for fits into this many times over.
    max_json_bytes: int = 1024 * 1024
    # Completion windows that may be asked for.
    windows: tuple[str, ...] = ("24h",)
    # None: kept until deleted.
    input_retention: float | None = 30 * DAY
    output_retention: float | None = 30 * DAY
    # What an ended batch leaves in the database besides its files.
    results_retention: float | None = 7 * DAY
    # Items, results and files of governed batches that have ended; the audit log is kept for ever.
    operations_retention: float | None = 90 * DAY
    upload_lifetime: float = 3600.0
    allow_private_webhooks: bool = False
    # Without it everybody is the one admin of the default tenant, on this machine only.
    authentication: bool = True
    # Whether /openapi.json, which names every operation, is there without a key; None: only where the server
    # listens on loopback.
    public_openapi: bool | None = None
    # Connections to the database: for short statements, and for the pages of downloads.
    sessions: int = 16
    streams: int = 16
    # An object store's URL; None: a folder under data_dir.
    objects: str | None = None
    # Of governed operations.
    limits: LimitSettings = field(default_factory=LimitSettings)
    # How long a governed batch has, the wait for its approval included.
    operation_window: str = "7d"

    def upstream_for(self, model: str) -> UpstreamSettings | None:
        """The upstream that names the model, or else the first that takes any."""
        named = (upstream for upstream in self.upstreams if model in upstream.models)
        return next(named, None) or next((up for up in self.upstreams if ANY_MODEL in up.models), None)


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
