"""Options that many commands share, and exit codes.

Options that are settings get their names, kinds and help from the settings' definitions.
"""

from enum import IntEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from batchline.config.definitions import Setting, settings_of
from batchline.config.loading import TABLES
from batchline.config.settings import ServerSettings, Settings, UpstreamSettings, WorkerSettings
from batchline.model import MAX_PRIORITY, MIN_PRIORITY, Recovery, Via
from batchline.model.spending import MAX_TOKENS

# Panels of the help, in the order of `batchline --help`.
PANEL_RUN = "Run batches"
PANEL_BATCHES = "Look at batches and change them"
PANEL_OPERATIONS = "Governed operations"
PANEL_SET_UP = "Set up and check"


# Panels of a command's options.
PANEL_DATABASE = "Database and files"
PANEL_UPSTREAM = "Upstream"
PANEL_PROVIDER = "Asynchronous provider"
PANEL_HOOKS = "Completion hooks"


class Exit(IntEnum):
    OK = 0
    SOME_FAILED = 1
    BAD_INPUT = 2
    PAUSED = 3
    INTERRUPTED = 130


def setting_option(
    owner: type[Any], key: str, *names: str, without_file: bool = False, variable: bool = True
) -> Any:
    """The option of a setting. It is None unless the user gives it, so that defaults stay in the settings.

    Settings that can be in the file read their own variables; the others' are read here, and also those of
    commands that read no file. `variable`: False for a command that takes the setting from its option alone.
    """
    each = settings_of(owner)[key]
    panel = _panel(owner, key)
    if isinstance(each.default, bool):
        return typer.Option(each.flag_name, help=each.help, rich_help_panel=panel)
    default = "" if each.default in (None, ()) else each.kind.display(each.default).strip('"')
    table = next(
        (name for name, known in TABLES.items() if known is owner and each.flag and each.in_file), ""
    )
    return typer.Option(
        each.flag_name,
        *names,
        envvar=each.variable_name() if owner is Settings or without_file else None,
        parser=lambda value: _parsed(each, value),
        metavar=each.kind.metavar,
        help=each.help
        + (f" Default: {default}." if default else "")
        + (f" Variable: {each.variable_name(table)}." if table and variable else ""),
        rich_help_panel=panel,
    )


def _panel(owner: type[Any], key: str) -> str | None:
    if key.startswith("provider"):
        return PANEL_PROVIDER
    if key.startswith("on_end"):
        return PANEL_HOOKS
    if owner is UpstreamSettings or key == "upstream":
        return PANEL_UPSTREAM
    return PANEL_DATABASE if key in ("database", "data_dir", "config", "listen", "objects") else None


def _parsed(each: Setting, value: Any) -> Any:
    try:
        return each.kind.read(each.kind.from_text(value))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def _positive(text: str) -> float:
    try:
        amount = float(text)
    except ValueError:
        amount = 0.0
    if not 0 < amount <= 1e9:
        raise typer.BadParameter("must be a number of dollars above 0, such as 5 or 0.25")
    return amount


Database = Annotated[str | None, setting_option(Settings, "database")]
DataDir = Annotated[Path | None, setting_option(Settings, "data_dir")]
Config = Annotated[Path | None, setting_option(Settings, "config")]
Upstream = Annotated[str | None, setting_option(Settings, "upstream")]
Listen = Annotated[str | None, setting_option(Settings, "listen")]
ObjectsUrl = Annotated[str | None, setting_option(ServerSettings, "objects")]
Host = Annotated[str | None, setting_option(ServerSettings, "host")]
Port = Annotated[int | None, setting_option(ServerSettings, "port")]
WorkerConcurrency = Annotated[int | None, setting_option(WorkerSettings, "concurrency", "-c")]
# The parser gives a tuple, which as a type would mean several values to typer.
OnEnd = Annotated[Any, setting_option(WorkerSettings, "on_end")]
OnEndCommand = Annotated[Any, setting_option(WorkerSettings, "on_end_command")]
OnEndTimeout = Annotated[float | None, setting_option(WorkerSettings, "on_end_timeout")]
OnEndEnv = Annotated[Any, setting_option(WorkerSettings, "on_end_env")]
# `run` reads no settings, only its options.
RunOnEnd = Annotated[Any, setting_option(WorkerSettings, "on_end", variable=False)]
RunOnEndCommand = Annotated[Any, setting_option(WorkerSettings, "on_end_command", variable=False)]
RunOnEndTimeout = Annotated[float | None, setting_option(WorkerSettings, "on_end_timeout", variable=False)]
RunOnEndEnv = Annotated[Any, setting_option(WorkerSettings, "on_end_env", variable=False)]
Lease = Annotated[float | None, setting_option(WorkerSettings, "lease")]
BodyMemory = Annotated[int | None, setting_option(WorkerSettings, "body_memory")]
RunBodyMemory = Annotated[
    int | None, setting_option(WorkerSettings, "body_memory", without_file=True, variable=False)
]
MetricsPort = Annotated[int | None, setting_option(WorkerSettings, "metrics_port")]
MetricsHost = Annotated[str | None, setting_option(WorkerSettings, "metrics_host")]
Drain = Annotated[bool, setting_option(WorkerSettings, "drain")]
MaxItems = Annotated[int | None, setting_option(WorkerSettings, "max_items")]
MaxSeconds = Annotated[float | None, setting_option(WorkerSettings, "max_seconds")]
Concurrency = Annotated[int | None, setting_option(UpstreamSettings, "concurrency", "-c")]
RequestsPerMinute = Annotated[int | None, setting_option(UpstreamSettings, "requests_per_minute", "--rpm")]
TokensPerMinute = Annotated[int | None, setting_option(UpstreamSettings, "tokens_per_minute", "--tpm")]
ApiKeyEnv = Annotated[str | None, setting_option(UpstreamSettings, "api_key_env")]
MaxAttempts = Annotated[int | None, setting_option(UpstreamSettings, "max_attempts")]
Timeout = Annotated[float | None, setting_option(UpstreamSettings, "timeout")]
Provider = Annotated[str | None, setting_option(UpstreamSettings, "provider")]
ProviderRecovery = Annotated[Recovery | None, setting_option(UpstreamSettings, "provider_recovery")]
ProviderMaxTasks = Annotated[int | None, setting_option(UpstreamSettings, "provider_max_tasks")]
ProviderRecheck = Annotated[float | None, setting_option(UpstreamSettings, "provider_recheck")]
SendVia = Annotated[Via | None, setting_option(UpstreamSettings, "via")]
BatchApiName = Annotated[str | None, setting_option(UpstreamSettings, "batch_api")]
BatchWindow = Annotated[float | None, setting_option(UpstreamSettings, "batch_window")]
BatchFallback = Annotated[float | None, setting_option(UpstreamSettings, "batch_fallback")]
BatchRecovery = Annotated[Recovery | None, setting_option(UpstreamSettings, "batch_recovery")]
BatchRecheck = Annotated[float | None, setting_option(UpstreamSettings, "batch_recheck")]
BatchMaxLines = Annotated[int | None, setting_option(UpstreamSettings, "batch_max_lines")]
BatchMaxTokens = Annotated[int | None, setting_option(UpstreamSettings, "batch_max_tokens")]
BatchDeleteFiles = Annotated[bool, setting_option(UpstreamSettings, "batch_delete_files")]
DEFAULT_WINDOW = ServerSettings().windows[0]
Window = Annotated[
    str,
    typer.Option(
        "--window",
        metavar="TIME",
        help="Lines that are not done after this time expire: 24h, 90m, 7d, or none.",
    ),
]
Priority = Annotated[
    int | None,
    typer.Option(
        "--priority",
        metavar="N",
        min=MIN_PRIORITY,
        max=MAX_PRIORITY,
        help="Batches with a higher priority run first: -100 to 100. Default: 0.",
    ),
]
MaxFailed = Annotated[
    str | None,
    typer.Option(
        "--max-failed",
        metavar="N|P%",
        help="Pause when more lines have failed: a number, or a share of all lines. none: never pause."
        " Default: pause when the first 50 lines all fail alike with 400, 401, 403 or 404.",
    ),
]

MaxCost = Annotated[
    float | None,
    typer.Option(
        "--max-cost",
        metavar="DOLLARS",
        parser=_positive,
        help="Pause before the batch could cost more. Prices: [[prices]] in batchline.toml.",
    ),
]
MaxTokens = Annotated[
    int | None,
    typer.Option(
        "--max-tokens",
        metavar="N",
        min=1,
        max=MAX_TOKENS,
        help="Pause before the batch could use more tokens.",
    ),
]

Sample = Annotated[
    int | None,
    typer.Option(
        "--sample",
        metavar="N",
        min=1,
        max=10_000,
        help="Run N random lines, forecast time, tokens and cost of the rest, then ask.",
    ),
]

Force = Annotated[
    bool,
    typer.Option("--force", help="Replace files that Batchline did not write, or that have changed."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
BatchId = Annotated[
    str,
    typer.Argument(metavar="ID", help="A batch id, its first digits, or @1 for the newest batch."),
]
Inputs = Annotated[
    list[str],
    typer.Argument(
        metavar="INPUT…",
        help="Files, patterns, folders, URLs or `-`: requests, one per line, or rows (CSV, Parquet, …).",
    ),
]
Limit = Annotated[int, typer.Option("--limit", min=1, max=1000, help="Maximum number of rows.")]
OnlyTenant = Annotated[str | None, typer.Option("--tenant", metavar="T", help="Only this tenant.")]
