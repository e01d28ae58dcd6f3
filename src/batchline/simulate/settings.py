"""Settings of a simulated upstream, each defined once: `batchline simulate` takes its options from here."""

from collections.abc import Iterator
from dataclasses import Field, dataclass, field, fields
from typing import Any, TypeVar

from batchline.simulate.capacity import parsed_steps
from batchline.simulate.load_page import SERVERS

Value = TypeVar("Value")


def _option(default: Value, help: str, **more: Any) -> Value:
    """A setting that is an option too. `more`: its `flag`, if that differs from its name, `metavar`, `min`
    and `max`."""
    return field(default=default, metadata={"help": help, **more})


@dataclass(frozen=True, slots=True)
class SimulateSettings:
    port: int = _option(0, "0 picks a free port.", min=0, max=65_535)
    host: str = _option("127.0.0.1", "The address to listen on.")
    latency_ms: float = _option(0.0, "Of each answer.", flag="--latency", metavar="MS", min=0)
    jitter_ms: float = _option(
        0.0, "Maximum random time to add to the latency (uniform).", flag="--jitter", metavar="MS", min=0
    )
    token_latency_ms: float = _option(
        0.0, "Time that each token of an answer adds.", flag="--token-latency", metavar="MS", min=0
    )
    prompt_latency_ms: float = _option(
        0.0, "Time that each token of a prompt adds.", flag="--prompt-latency", metavar="MS", min=0
    )
    prefix_cache: int = _option(
        0,
        "Blocks of 16 tokens in a cache of prompts' beginnings, which then add no time. 0: no cache.",
        metavar="N",
        min=0,
    )
    concurrency: int = _option(0, "Requests executed at once; others queue. 0: no limit.", min=0)
    capacity_steps: str = _option(
        "",
        "Changes --concurrency over time, counted from the first request: '30s:16,60s:0,90s:8'. 0: none.",
        metavar="TIME:N,...",
    )
    max_queue: int | None = _option(
        None, "Requests that queue at most; others are refused. Default: no limit.", metavar="N", min=0
    )
    refuse_with: int = _option(
        503, "Status of requests that find the queue full: 503 or 429.", metavar="STATUS"
    )
    late_refusal_ms: float = _option(
        0.0,
        "With --max-queue: a refused request first occupies a slot for this long.",
        flag="--late-refusal",
        metavar="MS",
        min=0,
    )
    rate_limit: float = _option(
        0.0,
        "Above this rate: 429. Bursts of one second's worth are allowed. 0: no limit.",
        metavar="RPS",
        min=0,
    )
    token_limit: float = _option(
        0.0, "Above so many tokens per minute: 429, as for --rate-limit. 0: no limit.", metavar="TPM", min=0
    )
    error_rate: float = _option(0.0, "Share answered 500 or 503 without execution.", min=0, max=1)
    refuse_rate: float = _option(
        0.0, "Share answered 429 without a Retry-After and without execution.", min=0, max=1
    )
    hang_rate: float = _option(0.0, "Share never answered and never executed.", min=0, max=1)
    drop_rate: float = _option(
        0.0, "Share whose connection is closed without an answer, half of them after execution.", min=0, max=1
    )
    seed: int = _option(0, "Determines answers, faults and jitter.")
    keyless: bool = _option(
        False, "Ignore Idempotency-Keys, and drop queued requests of disconnected clients, as llama.cpp does."
    )
    only_listed: bool = _option(False, "Answer 404 to requests for models that GET /v1/models does not list.")
    answer: str = _option("", 'The text of all answers, such as \'{"label": "spam"}\'. Default: words.')
    bad_answers: int = _option(
        0,
        "With --answer: answers in a conversation that come first and are bad: not JSON, empty, cut or a"
        " refusal.",
        metavar="N",
        min=0,
    )
    no_response_format: bool = _option(
        False, "Answer 400 to requests with a response_format, as upstreams that do not know it do."
    )
    answer_bytes: int = _option(
        0, "Minimum size of good answers, sent as fast as they are read. 0: no minimum.", metavar="N", min=0
    )
    metrics: str = _option(
        "",
        "Serve GET /metrics with the names of this server: vllm, sglang or llamacpp. Default: 404.",
        metavar="SERVER",
    )
    crash_on: str = _option(
        "", "End the process at once, as if it was killed, when a request contains this.", metavar="TEXT"
    )
    record: bool = _option(False, "Keep every execution for GET /executions. Memory grows with each one.")
    accept_ms: float = _option(
        0.0,
        "Until a background response is accepted and answered.",
        flag="--accept",
        metavar="MS",
        min=0,
    )
    task_ms: float = _option(
        0.0,
        "Until a background response is completed, or a message batch.",
        flag="--task",
        metavar="MS",
        min=0,
    )
    lose_rate: float = _option(
        0.0, "Share accepted in the background whose connection is closed without an answer.", min=0, max=1
    )
    vanish_rate: float = _option(0.0, "Share accepted in the background and never found again.", min=0, max=1)
    tasks_file: str = _option(
        "", "Keeps background responses and message batches over restarts.", metavar="FILE"
    )
    models: tuple[str, ...] = _option(
        ("sim-small", "sim-large"),
        "What GET /v1/models lists; may be repeated. Without --only-listed, a request may name any model.",
        flag="--model",
        metavar="NAME",
    )
    max_keys: int = 1_000_000
    """Remembered Idempotency-Keys. Beyond that, the oldest is forgotten and would be executed again."""

    def __post_init__(self) -> None:
        for each in options():
            value = getattr(self, each.name)
            if value is None:
                continue
            if each.metadata.get("max") == 1 and not 0 <= value <= 1:
                raise ValueError(f"{each.name} must be a share from 0 to 1, but is {value}")
            if "min" in each.metadata and value < each.metadata["min"]:
                raise ValueError(f"{each.name} must not be negative, but is {value}")
        if self.error_rate + self.refuse_rate + self.hang_rate + self.drop_rate > 1:
            raise ValueError("error_rate, refuse_rate, hang_rate and drop_rate must not exceed 1 together")
        if self.max_keys < 1:
            raise ValueError(f"max_keys must be at least 1, but is {self.max_keys}")
        if self.metrics and self.metrics not in SERVERS:
            raise ValueError(f"metrics must be one of {', '.join(SERVERS)}, but is {self.metrics!r}")
        self._check_capacity()

    def _check_capacity(self) -> None:
        parsed_steps(self.capacity_steps)
        if self.refuse_with not in (429, 503):
            raise ValueError(f"refuse_with must be 429 or 503, but is {self.refuse_with}")
        if self.capacity_steps and not self.concurrency:
            raise ValueError("capacity_steps needs concurrency: the number of requests before the first step")
        if self.max_queue is not None and not self.concurrency:
            raise ValueError("max_queue needs concurrency: without it nothing queues")
        if self.late_refusal_ms and self.max_queue is None:
            raise ValueError("late_refusal_ms needs max_queue: without it nothing is refused")


def options() -> Iterator[Field[Any]]:
    """The settings that are options of the command, in the order of its help."""
    return (each for each in fields(SimulateSettings) if each.metadata)
