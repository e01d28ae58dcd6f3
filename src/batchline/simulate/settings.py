"""Settings of a simulated upstream."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SimulateSettings:
    host: str = "127.0.0.1"
    port: int = 0
    """0 picks a free port."""
    models: tuple[str, ...] = ("sim-small", "sim-large")
    """What GET /v1/models lists. A request may name any model."""
    seed: int = 0
    """Seed of the answers, the faults and the jitter."""
    latency_ms: float = 0.0
    jitter_ms: float = 0.0
    """Maximum of the random time added to each latency (uniform)."""
    concurrency: int = 0
    """Requests executed concurrently; others queue. 0: no limit."""
    rate_limit: float = 0.0
    """Requests per second, with bursts of one second's worth; others get 429. 0: no limit."""
    error_rate: float = 0.0
    """Share answered 500 or 503 without execution."""
    hang_rate: float = 0.0
    """Share never answered and never executed."""
    refuse_rate: float = 0.0
    """Share answered 429 without a Retry-After and without execution."""
    drop_rate: float = 0.0
    """Share whose connection is closed without an answer, half of them after execution."""
    keyless: bool = False
    """Ignore Idempotency-Keys, and drop queued requests of disconnected callers, as llama.cpp does."""
    answer_bytes: int = 0
    """Minimum size of good answers, which are streamed as fast as they are read. 0: no minimum."""
    record: bool = False
    """Keep every execution for GET /executions. Memory grows with each one."""
    accept_ms: float = 0.0
    """Time until a background response is accepted and answered."""
    task_ms: float = 0.0
    """Time until a background response is completed."""
    lose_rate: float = 0.0
    """Share of background responses that are accepted and whose connection is closed without an answer."""
    vanish_rate: float = 0.0
    """Share of background responses that are accepted and never found again."""
    tasks_file: str = ""
    """A file that keeps background responses across restarts. Empty: they end with the process."""
    max_keys: int = 1_000_000
    """Remembered Idempotency-Keys. Beyond that, the oldest is forgotten and would be executed again."""

    def __post_init__(self) -> None:
        for name in (
            "latency_ms",
            "jitter_ms",
            "concurrency",
            "rate_limit",
            "answer_bytes",
            "accept_ms",
            "task_ms",
        ):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, but is {getattr(self, name)}")
        for name in ("error_rate", "refuse_rate", "hang_rate", "drop_rate", "lose_rate", "vanish_rate"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be a share from 0 to 1, but is {getattr(self, name)}")
        if self.error_rate + self.refuse_rate + self.hang_rate + self.drop_rate > 1:
            raise ValueError("error_rate, refuse_rate, hang_rate and drop_rate must not exceed 1 together")
        if self.max_keys < 1:
            raise ValueError(f"max_keys must be at least 1, but is {self.max_keys}")
