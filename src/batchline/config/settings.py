"""All settings, each defined once: its name, type, default, range and one line of help.

The file, the environment, the flags and the reference page follow from these definitions. Times are in
seconds, sizes in bytes. A field without a definition is not a setting: the program fills it in.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from batchline.config import kinds
from batchline.config.definitions import about, setting
from batchline.config.kinds import MIB, SWITCH, TEXT, TIME_OR_NEVER, amount, count, size, time
from batchline.model import ProviderSettings, Recovery, RelaySettings, RunSettings, Via
from batchline.model.concurrency import AUTO

DAY = 86_400.0
_PRICE = kinds.amount(0, 1_000_000)
EVENTS_KEPT = 30 * DAY
ANY_MODEL = "*"


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """How a worker behaves."""

    concurrency: int = setting(
        AUTO, kinds.concurrency(), "Requests in flight at once, at each upstream.", flag=True
    )
    # A worker that is killed delays its batches by at most this time, so it is limited.
    lease: float = setting(
        15.0, time(1, 300), "How long until other workers take over the work of a lost worker.", flag=True
    )
    poll_min: float = setting(0.75, time(), "First pause between polls of an idle worker; then it doubles.")
    poll_max: float = setting(15.0, time(), "Longest pause between polls of an idle worker.")
    settle_max: int = setting(500, count(1, 10_000), "A settle is sent with this many verdicts, or earlier.")
    settle_after: float = setting(0.04, time(), "A settle is sent after this time, or earlier.")
    buffer_seconds: float = setting(2.0, time(), "The buffer holds work for this time at the measured rate.")
    buffer_max: int = setting(10_000, count(1, 1_000_000), "Maximum number of items in the buffer.")
    settle_max_bytes: int = setting(16 * MIB, size(MIB), "Maximum size of a settle with several verdicts.")
    body_memory: int = setting(
        512 * MIB,
        size(16 * MIB, "MiB"),
        "Memory for requests and answers, whatever upstreams answer.",
        flag=True,
        variable="BATCHLINE_BODY_MEMORY",
    )
    drain: bool = setting(False, SWITCH, "Stop when there is nothing left to do.", flag=True, in_file=False)
    max_seconds: float | None = setting(None, time(0.1), "Stop after this time.", flag=True, in_file=False)
    max_items: int | None = setting(
        None,
        count(1, 1_000_000_000),
        "Claim at most this many items, finish them and stop.",
        flag=True,
        in_file=False,
    )
    metrics_port: int | None = setting(
        None, count(0, 65_535), "Serve metrics for Prometheus on this port; 0 is any free port.", flag=True
    )
    metrics_host: str = setting("127.0.0.1", TEXT, "The address for the metrics port.", flag=True)
    grace: float = setting(10.0, time(), "How long requests in flight may take after `--max-seconds`.")
    stop_patience: float = setting(60.0, time(), "How long a stopping worker waits for its database.")
    on_end: tuple[str, ...] = setting(
        (),
        kinds.FUNCTIONS,
        "Python functions to call after a batch has ended: `module:function`, or an entry point's name.",
        flag=True,
    )
    on_end_command: tuple[str, ...] = setting(
        (),
        kinds.COMMAND,
        "A program to run after a batch has ended, without a shell. It reads the event as JSON.",
        flag=True,
    )
    on_end_timeout: float = setting(
        60.0, time(0.1), "How long such a function or program may run.", flag=True
    )
    on_end_env: tuple[str, ...] = setting(
        (), kinds.VARIABLES, "Variables that it gets in addition to PATH, HOME and the like.", flag=True
    )
    # As the server has them. None: results are kept until their files are deleted.
    results_retention: float | None = None
    operations_retention: float | None = None
    events_retention: float | None = EVENTS_KEPT
    allow_private_webhooks: bool = False

    @property
    def renew_every(self) -> float:
        return self.lease / 3

    @property
    def fence_after(self) -> float:
        """How long after its last renewal a worker stops sending: well before others may take over."""
        return self.lease * 0.8


@dataclass(frozen=True, slots=True)
class UpstreamSettings:
    """A model server, or another HTTP service that operations call."""

    name: str = field(metadata=about(kinds.NAME, "Its name, for people, variables and operations."))
    base_url: str = field(metadata=about(kinds.BASE_URL, "Its base URL."))
    api_key_env: str | None = setting(None, kinds.VARIABLE, "The variable that holds the upstream's API key.")
    models: tuple[str, ...] = setting(
        (ANY_MODEL,), kinds.MODELS, "Models it serves; `*`: all models that no other upstream lists."
    )
    concurrency: int = setting(AUTO, kinds.concurrency(), "Requests in flight at once, from one worker.")
    timeout: float = setting(600.0, time(0.1), "How long one request may take.")
    max_attempts: int = setting(5, count(1, 100), "Maximum number of attempts per line.")
    provider: str | None = setting(
        None,
        kinds.PROVIDER,
        "It is an asynchronous provider, which accepts lines as tasks: `openai-background`.",
    )
    provider_recovery: Recovery = setting(
        Recovery.HOLD,
        kinds.RECOVERY,
        "What to do with a line that it may have accepted: `hold`, `key`, `metadata` or `resubmit`.",
    )
    provider_max_tasks: int = setting(
        10_000, count(1, 1_000_000), "Tasks that it may have at once, from all workers."
    )
    provider_recheck: float = setting(
        60.0, time(0.1), "After this time, a provider knows the tasks that it has accepted."
    )
    via: Via = setting(
        Via.DIRECT,
        kinds.VIA,
        "How lines reach it: `direct`, in chunks through its `batch` API, or `auto`: so while time allows.",
    )
    batch_api: str = setting("openai", kinds.BATCH_API, "The kind of its batch API: `openai`, `anthropic`.")
    batch_window: float = setting(DAY, time(1.0), "How long its batches take at most.")
    batch_fallback: float = setting(
        3600.0,
        time(0.0),
        "With `auto`: so long before the deadline, lines without an answer are sent directly.",
    )
    batch_recovery: Recovery = setting(
        Recovery.HOLD,
        kinds.BATCH_RECOVERY,
        "What to do with a chunk that it may have accepted, if it cannot be searched: `hold`, `resubmit`.",
    )
    batch_recheck: float = setting(
        60.0, time(0.1), "After this time, it lists the batches that it has accepted."
    )
    batch_max_lines: int | None = setting(
        None, count(1, 100_000), "Lines in one chunk. Default: 50,000, or 100,000 with `anthropic`."
    )
    batch_max_bytes: int | None = setting(
        None, size(1024), "Size of one chunk. Default: 200 MB, or 256 MB with `anthropic`."
    )
    batch_max_tokens: int | None = setting(
        None, count(1000, 10**12), "Input tokens, as estimated, of all its chunks at once. Default: no limit."
    )
    batch_max_chunks: int = setting(20, count(1, 10_000), "Chunks that it has at once, from all workers.")
    batch_delete_files: bool = setting(
        False, SWITCH, "Delete its files of a chunk once the chunk's answers are stored."
    )
    weight: int = setting(
        1,
        count(0, 1000),
        "Its share of the lines, if several upstreams serve a model; 0: only while no other is available.",
    )
    aliases: Mapping[str, str] = setting(
        {},
        kinds.ALIASES,
        "The names that it has for models: `{ model = name }`. It gets them in `body.model`.",
    )
    fail_over_after_timeout: bool = setting(
        False, SWITCH, "Another upstream may run a line after this one gave no answer, and may have run it."
    )
    escalate_before: float | None = setting(
        None,
        time(1.0),
        "It takes only lines of batches whose deadline is nearer than this. Default: any lines.",
    )
    health: str | None = setting(
        None, kinds.REQUEST_PATH, "A path below the host that answers 200 while the upstream is well."
    )
    health_every: float = setting(
        10.0,
        time(0.1),
        "How often this path is requested while the upstream is unavailable, and while work for it is open"
        " and no request is in flight there.",
    )
    load_signal: bool = setting(
        True,
        SWITCH,
        "Let the limit of requests in flight follow its own account of waiting requests, if it has one:"
        " /metrics of vLLM, SGLang and llama.cpp.",
    )
    requests_per_minute: int | None = setting(
        None, kinds.REQUESTS_PER_MINUTE, "Requests per minute that all workers together may send to it."
    )
    tokens_per_minute: int | None = setting(
        None, kinds.TOKENS_PER_MINUTE, "Tokens per minute of these requests, input and output."
    )

    def run_settings(self) -> RunSettings:
        """How lines run at this upstream."""
        provider = None
        if self.provider is not None:
            provider = ProviderSettings(
                self.provider, self.provider_recovery, self.provider_max_tasks, self.provider_recheck
            )
        return RunSettings(
            self.base_url, self.api_key_env, self.max_attempts, self.timeout, provider, self.relay_settings()
        )

    def relay_settings(self) -> RelaySettings | None:
        """How its batch API is used; None: it is not."""
        if self.via is Via.DIRECT:
            return None
        return RelaySettings(
            via=self.via,
            api=self.batch_api,
            window=self.batch_window,
            fallback=self.batch_fallback,
            recovery=self.batch_recovery,
            recheck=self.batch_recheck,
            max_lines=self.batch_max_lines,
            max_bytes=self.batch_max_bytes,
            max_tokens=self.batch_max_tokens,
            max_chunks=self.batch_max_chunks,
            delete_files=self.batch_delete_files,
        )


@dataclass(frozen=True, slots=True)
class BudgetSettings:
    """Requests and tokens per minute of all workers together, for an upstream, a model, a tenant, or a
    combination of them. A request counts in all budgets that apply to it."""

    upstream: str | None = setting(None, TEXT, "The name of an upstream. Default: all of them together.")
    model: str | None = setting(None, TEXT, "A model, as lines name it. Default: all of them together.")
    tenant: str | None = setting(
        None, TEXT, "A tenant; `*`: each tenant that has no such budget of its own. Default: all together."
    )
    requests_per_minute: int | None = setting(
        None, kinds.REQUESTS_PER_MINUTE, "Requests per minute, at most."
    )
    tokens_per_minute: int | None = setting(
        None, kinds.TOKENS_PER_MINUTE, "Tokens per minute, input and output, at most."
    )


@dataclass(frozen=True, slots=True)
class OperationSettings:
    """A governed operation as the file has it. `governance.registry` makes an Operation of it."""

    name: str = field(metadata=about(kinds.NAME, "Lower-case letters, digits, `_` and `-`."))
    upstream: str = field(metadata=about(TEXT, "The name of an upstream."))
    path: str = field(metadata=about(TEXT, "A template of the path, below the upstream's `base_url`."))
    method: str = setting("POST", kinds.METHOD, "GET, POST, PUT, PATCH or DELETE.")
    query: Mapping[str, str] = setting({}, kinds.TEXT_TABLE, "Templates of the query.")
    headers: Mapping[str, str] = setting({}, kinds.TEXT_TABLE, "Templates of headers.")
    body: Any = setting(None, kinds.TEMPLATE, "A template of the body. Without it, the item is the body.")
    content_type: str = setting("application/json", TEXT, "The body's content type.")
    description: str = setting("", TEXT, "For people, and for the API document.")
    schema: Mapping[str, Any] = setting({"type": "object"}, kinds.TABLE, "JSON Schema (2020-12) of an item.")
    largest_batch: int = setting(100, count(1, 100_000), "Maximum number of items in one batch.")
    max_attempts: int = setting(
        3, count(1, 100), "Maximum number of attempts per item, manual ones included."
    )
    approval: str = setting("never", TEXT, "Needs an approval: `always`, `never`, or a rule over the item.")
    self_approval: bool = setting(False, SWITCH, "Approvers may approve what they submitted themselves.")
    submitters: tuple[str, ...] | None = setting(
        None, kinds.TEXTS, "Who may submit it: names of users, and `role:ROLE`. Default: everybody."
    )
    redact: tuple[str, ...] = setting((), kinds.TEXTS, "Fields to mask, in addition to the usual ones.")
    outcomes: tuple[Mapping[str, Any], ...] = setting(
        (), kinds.TABLES, "What answers mean; the first match counts."
    )
    confirm: str | None = setting(None, TEXT, "With outcome `same`: the path to read.")
    gone_when: str | None = setting(None, TEXT, "An expression: what was read is being deleted, retry.")
    timeout: float = setting(60.0, time(), "How long one request may take.")
    # Where each key is, such as `batchline.toml, line 12`; "" is the table itself.
    positions: Mapping[str, str] = field(default_factory=dict, compare=False)

    def position_of(self, key: str) -> str:
        return self.positions.get(key) or self.positions.get("", "the settings")


@dataclass(frozen=True, slots=True)
class PackSettings:
    """Operations that come with the program."""

    name: str
    upstream: str = field(metadata=about(TEXT, "The name of an upstream."))
    approval: str | Mapping[str, str] | None = setting(
        None, kinds.RULES, "When a batch waits for an approval."
    )
    largest_batch: Mapping[str, int] = setting({}, kinds.BATCH_SIZES, "Maximum number of items in one batch.")
    self_approval: bool = setting(False, SWITCH, "Approvers may approve what they submitted themselves.")
    submitters: tuple[str, ...] | Mapping[str, tuple[str, ...]] | None = setting(
        None, kinds.SUBMITTERS, "Who may submit them: names of users, and `role:ROLE`. Default: everybody."
    )
    position: str = field(default="the settings", compare=False)


@dataclass(frozen=True, slots=True)
class StageSettings:
    """A stage that sends each item to a model. `operations.declared_stages` makes an operation of it."""

    name: str
    model: str = field(metadata=about(TEXT, "The model. Its upstream is that of lines with this model."))
    prompt: str = field(metadata=about(kinds.PROMPT, "A Jinja template over the fields of the item."))
    system: str | None = setting(None, kinds.PROMPT, "A template of the system message.")
    params: Mapping[str, Any] = setting({}, kinds.TABLE, "More fields of the request.")
    endpoint: str = setting(
        "/v1/chat/completions", TEXT, "Where requests go, below the upstream's `base_url`."
    )
    output: str | None = setting(None, TEXT, "The field that gets the answer. Default: the stage's name.")
    emits: tuple[str, ...] = setting((), kinds.STAGES, "The stages that get the item with the answer.")
    max_attempts: int | None = setting(
        None, count(1, 100), "Maximum number of attempts per item. Default: as of the upstream."
    )
    timeout: float | None = setting(
        None, time(0.1), "How long one request may take. Default: as of the upstream."
    )
    concurrency: int | None = setting(
        None,
        kinds.concurrency(),
        "Requests in flight at once, from one worker. Default: stages share those of the upstream.",
    )
    keep_results: bool = setting(True, SWITCH, "Store the results of this stage, too.")
    # Where each key is, such as `batchline.toml, line 12`; "" is the table itself.
    positions: Mapping[str, str] = field(default_factory=dict, compare=False)

    def position_of(self, key: str) -> str:
        return self.positions.get(key) or self.positions.get("", "the settings")


@dataclass(frozen=True, slots=True)
class LimitSettings:
    """Limits of governed operations: of all users together, and of each user."""

    max_pending_parents: int = setting(100, count(1, 1_000_000), "Batches of all users that have not ended.")
    requests_per_minute: int = setting(1000, count(1, 10_000_000), "Reads of all users, and as many writes.")
    user_requests_percent: int = setting(25, count(1, 100), "One user's share of these, in percent.")
    user_pending_parents: int = setting(3, count(1, 1_000_000), "Batches of one user that have not ended.")
    user_pending_children: int = setting(30, count(1, 1_000_000), "Children of these that have not ended.")
    cooldown_seconds: int = setting(120, count(0, 31_536_000), "Seconds between two submissions of a user.")
    contact_admin: str = setting("an administrator of this server", TEXT, "The contact that a refusal names.")


@dataclass(frozen=True, slots=True)
class PriceSettings:
    """What the tokens of a model cost, in dollars per million tokens."""

    model: str = field(metadata=about(TEXT, "The model; `*`: all models that have no price of their own."))
    input: float = field(metadata=about(_PRICE, "Of input."))
    output: float = setting(0.0, _PRICE, "Of output, reasoning included.")
    cached_input: float | None = setting(
        None, _PRICE, "Of input that the upstream has cached. Default: as other input."
    )
    batch_discount: float = setting(
        0.5, amount(0, 1), "The part that is taken off for lines that go through the upstream's batch API."
    )


@dataclass(frozen=True, slots=True)
class SpendingSettings:
    """How much is reserved for a request under `--max-cost` and `--max-tokens`."""

    output_tokens: int = setting(
        4096, count(1, 10_000_000), "Output to reserve for a request that sets no limit."
    )
    bytes_per_token: float = setting(
        3.0,
        amount(0.1, 100),
        "Bytes of a request per token of input, unless earlier requests had more tokens.",
    )


@dataclass(frozen=True, slots=True)
class TraceSettings:
    """Traces of lines, for OpenTelemetry. They need the extra `batchline[otel]`."""

    endpoint: str | None = setting(
        None,
        kinds.ENDPOINT,
        "Where traces go, by OTLP over HTTP, such as http://127.0.0.1:4318. Default: there are none.",
    )
    sample: float = setting(0.01, amount(0, 1), "The share of lines that are traced.")
    first: int = setting(
        10, count(0, 1_000_000), "So many lines at the start of each batch are traced in any case."
    )
    headers_to: tuple[str, ...] = setting(
        (), kinds.URLS, "Base URLs of upstreams that get the header `traceparent`. No other upstream gets it."
    )


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """What the server allows, and how long it keeps data."""

    upstreams: tuple[UpstreamSettings, ...] = ()
    operations: tuple[OperationSettings, ...] = ()
    packs: tuple[PackSettings, ...] = ()
    prices: tuple[PriceSettings, ...] = ()
    spending: SpendingSettings = field(default_factory=SpendingSettings)
    host: str = setting("127.0.0.1", TEXT, "The address to listen on.", flag=True)
    port: int = setting(8080, count(0, 65_535), "The port to listen on; 0 is any free port.", flag=True)
    max_file_bytes: int = setting(200 * MIB, size(), "Maximum size of a file.")
    max_lines: int = setting(50_000, count(1, 2**31 - 1), "Maximum number of lines in a file.")
    max_upload_bytes: int = setting(8192 * MIB, size(), "Maximum size of an upload in parts.")
    max_part_bytes: int = setting(64 * MIB, size(), "Maximum size of one part of an upload.")
    max_json_bytes: int = setting(MIB, size(), "Maximum size of all other request bodies.")
    windows: tuple[str, ...] = setting(
        ("24h",), kinds.WINDOWS, "Completion windows that clients may request."
    )
    endpoints: tuple[str, ...] = setting(
        (),
        kinds.ENDPOINTS,
        "Paths of lines besides OpenAI's: /v1/score, or /v1/* for all below.",
    )
    input_retention: float | None = setting(30 * DAY, TIME_OR_NEVER, "How long input files are kept.")
    output_retention: float | None = setting(30 * DAY, TIME_OR_NEVER, "How long output files are kept.")
    results_retention: float | None = setting(
        7 * DAY, TIME_OR_NEVER, "How long results stay in the database."
    )
    operations_retention: float | None = setting(
        90 * DAY, TIME_OR_NEVER, "How long governed batches are kept."
    )
    events_retention: float | None = setting(
        EVENTS_KEPT, TIME_OR_NEVER, "How long delivered events and their deliveries are kept."
    )
    upload_lifetime: float = setting(3600.0, time(), "Time limit to complete an upload in parts.")
    allow_private_webhooks: bool = setting(
        False, SWITCH, "Allow webhooks in private networks and on loopback."
    )
    # `serve --no-auth` clears it: everybody is then the one admin of the default tenant, on loopback only.
    authentication: bool = True
    # None: only on loopback.
    public_openapi: bool | None = setting(None, SWITCH, "Serve `/openapi.json` and `/docs` without a key.")
    session_lifetime: float = setting(
        12 * 3600.0, time(60.0, 30 * DAY), "How long a browser stays signed in to the dashboard."
    )
    sessions: int = setting(16, count(1, 1000), "Database connections for short statements.")
    streams: int = setting(16, count(1, 1000), "Database connections for the pages of downloads.")
    objects: str | None = setting(
        None,
        kinds.ADDRESS,
        "Where files are kept, such as s3://bucket/prefix. Default: a folder in the data folder.",
        flag=True,
        variable="BATCHLINE_OBJECTS",
    )
    limits: LimitSettings = field(default_factory=LimitSettings)
    operation_window: str = setting("7d", kinds.WINDOW, "Time limit of a governed batch, approval included.")
    stages: tuple[StageSettings, ...] = ()
    budgets: tuple[BudgetSettings, ...] = ()

    def upstream_for(self, model: str) -> UpstreamSettings | None:
        """The first upstream of those that serve the model. Answers are reused from it, if there are several,
        and single requests go there."""
        return next((each for each in self.upstreams_for(model) if each.weight), None)

    def upstreams_for(self, model: str) -> tuple[UpstreamSettings, ...]:
        """The upstreams that name the model, or else those that take any. Not those for escalations."""
        usual = [each for each in self.upstreams if each.escalate_before is None]
        named = tuple(each for each in usual if model in each.models)
        return named or tuple(each for each in usual if ANY_MODEL in each.models)

    def escalations_for(self, model: str) -> tuple[UpstreamSettings, ...]:
        """The upstreams that take lines with this model of batches near their deadline."""
        named = {name for each in self.upstreams for name in each.models}
        key = model if model in named else ANY_MODEL
        return tuple(
            each for each in self.upstreams if each.escalate_before is not None and key in each.models
        )


@dataclass(frozen=True, slots=True)
class Settings:
    """The whole tree. Its own settings have flags and variables, but are not in the file."""

    database: str | None = setting(
        None,
        kinds.ADDRESS,
        "A PostgreSQL, 15 to 18. Default: an embedded one in the data folder.",
        variable="BATCHLINE_DATABASE_URL",
    )
    data_dir: Path | None = setting(
        None, kinds.PATH, "The data folder. Default: the platform's folder for it."
    )
    config: Path | None = setting(None, kinds.PATH, "The settings. Default: batchline.toml, if it exists.")
    upstream: str | None = setting(
        None, kinds.UPSTREAM, "The model server, such as http://127.0.0.1:8000/v1."
    )
    listen: str | None = setting(
        None,
        kinds.ADDRESS,
        "The database's own address if --database is a pooler: to learn of batches at once.",
        variable="BATCHLINE_LISTEN_URL",
    )
    server: ServerSettings = field(default_factory=ServerSettings)
    worker: WorkerSettings = field(default_factory=WorkerSettings)
    traces: TraceSettings = field(default_factory=TraceSettings)
    # Where each value comes from that is not a default, such as `batchline.toml, line 12`, by `table.key`.
    origins: Mapping[str, str] = field(default_factory=dict, compare=False)
