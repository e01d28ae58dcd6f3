"""`batchline run`: its options. `run_batch` does the work."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from batchline.batches.creation import InvalidWindow, window_or_none
from batchline.cli import inputs as row_options
from batchline.cli import options, run_batch
from batchline.cli.display.console import CommandError, err, print_json
from batchline.cli.display.failures import failure_lines
from batchline.cli.errors import reported_errors
from batchline.cli.failure_limits import with_failure_limits
from batchline.cli.joining import JoinedInputs
from batchline.cli.manifest import manifest_target
from batchline.cli.output_plan import (
    FollowOption,
    FormatOption,
    JoinOption,
    SelectOption,
    check_follow,
    default_path,
    plan_output,
)
from batchline.cli.runtime import open_runtime, run_async, written_files
from batchline.cli.server_settings import hooks_in
from batchline.cli.targets import Outputs, OutputTarget, target_at
from batchline.config.settings import UpstreamSettings, WorkerSettings
from batchline.model import RunSettings
from batchline.upstreams import urls


def register(app: typer.Typer) -> None:
    app.command("run", rich_help_panel=options.PANEL_RUN)(run_inputs)


def run_inputs(
    inputs: options.Inputs,
    upstream: options.Upstream = None,
    model: row_options.Model = None,
    prompt: row_options.Prompt = None,
    system: row_options.System = None,
    param: row_options.Params = None,
    endpoint: row_options.Endpoint = None,
    id_column: row_options.IdColumn = None,
    template: row_options.BodyTemplate = None,
    input_format: row_options.InputFormat = None,
    delimiter: row_options.Delimiter = None,
    max_input_size: row_options.MaxInputSize = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="OUT",
            help="A .jsonl, .csv or .parquet file, or - for stdout. Default: INPUT.output.jsonl",
        ),
    ] = None,
    errors: Annotated[
        Path | None,
        typer.Option(
            "--errors", metavar="ERR.jsonl", help="Default: OUT.errors.jsonl; of a table, its column error."
        ),
    ] = None,
    format: FormatOption = None,
    select: SelectOption = None,
    join: JoinOption = False,
    follow: FollowOption = False,
    api_key_env: options.ApiKeyEnv = None,
    concurrency: options.Concurrency = None,
    max_attempts: options.MaxAttempts = None,
    timeout: options.Timeout = None,
    provider: options.Provider = None,
    provider_recovery: options.ProviderRecovery = None,
    provider_max_tasks: options.ProviderMaxTasks = None,
    provider_recheck: options.ProviderRecheck = None,
    body_memory: options.RunBodyMemory = None,
    window: options.Window = options.DEFAULT_WINDOW,
    max_failed: options.MaxFailed = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start over, and send every line again.")] = False,
    retry_failed: Annotated[
        bool,
        typer.Option(
            "--retry-failed",
            help="If it has ended, run the lines again that are not completed, and only these.",
        ),
    ] = False,
    force: options.Force = False,
    on_end: options.RunOnEnd = None,
    on_end_command: options.RunOnEndCommand = None,
    on_end_timeout: options.RunOnEndTimeout = None,
    on_end_env: options.RunOnEndEnv = None,
    database: options.Database = None,
    data_dir: options.DataDir = None,
    as_json: options.Json = False,
) -> None:
    """Run every line of INPUT against a model server. The same command again continues where it stopped.

    Lines that an earlier run has answered are not sent again, unless --fresh is given.

    Exit code 0: all lines completed. 1: some did not; the error file says why. 2: bad input or usage; nothing
    was sent. 3: paused because of its failures. 130: interrupted.

    Examples:

        batchline run prompts.jsonl --upstream http://127.0.0.1:8000/v1
        batchline run a.csv --upstream http://gpu:8000 --model M --prompt '{{text}}' -o b.csv
        batchline run a.jsonl --upstream https://models.example --api-key-env KEY
    """
    with reported_errors(as_json), ExitStack() as stack:
        server = run_upstream(
            upstream,
            api_key_env=api_key_env,
            concurrency=concurrency,
            max_attempts=max_attempts,
            timeout=timeout,
            provider=provider,
            provider_recovery=provider_recovery,
            provider_max_tasks=provider_max_tasks,
            provider_recheck=provider_recheck,
        )
        check_window(window)
        how = row_options.input_options(
            model=model,
            prompt=prompt,
            system=system,
            params=param,
            endpoint=endpoint,
            id_column=id_column,
            template=template,
            format=input_format,
            delimiter=delimiter,
            max_size=max_input_size,
        )
        hooks = hooks_in(_hook_settings(on_end, on_end_command, on_end_timeout, on_end_env))
        usual = default_path(row_options.default_output(inputs[0]), format)
        plan = plan_output(
            output or (Path("-") if follow else usual), errors, format=format, select=select, join=join
        )
        if not plan.is_table and plan.errors is None:
            plan = replace(plan, errors=target_at(_errors_beside(plan.output, usual)))
        if follow:
            check_follow(plan)
        target, manifest = plan.output, manifest_target(plan.output)
        outputs = Outputs(written_files(data_dir), force)
        if as_json and target.is_stdout:
            raise CommandError("--json prints one document on stdout; give -o FILE for the lines")
        found = stack.enter_context(row_options.opened_inputs(inputs, how, data_dir))
        _check_targets(outputs, target, [each for each in (plan.errors, manifest) if each], found.originals)
        if join:
            plan = plan.joined_to(JoinedInputs(found))
        order = run_batch.RunOrder(
            inputs=found,
            settings=_reserved(with_failure_limits(server.run_settings(), max_failed)),
            output=target,
            errors=plan.errors or target,
            outputs=outputs,
            plan=plan,
            manifest=manifest,
            follow=follow,
            how={
                "concurrency": server.concurrency,
                "rows": found.template,
                "select": select or None,
                "join": join,
            },
            window=window,
            worker=_worker_settings(server.concurrency, body_memory),
            fresh=fresh,
            retry_failed=retry_failed,
            hooks=hooks,
            as_json=as_json,
            command=run_batch.resume_command(inputs),
        )
        with open_runtime(database, data_dir, to_work=True) as runtime:
            outcome = run_async(run_batch.run(order, runtime))
        if as_json:
            print_json(run_batch.describe(order, outcome))
        else:
            # The summary is last, because it can end with the command to give next.
            for line in failure_lines(outcome.causes):
                order.console().print(f"  {line}", markup=False)
            (err() if outcome.interrupted else order.console()).print(
                run_batch.summary_line(order, outcome), markup=False
            )
        for line in run_batch.failed_hooks(order, outcome):
            err().print(line, markup=False)
        raise typer.Exit(run_batch.exit_code_of(outcome))


def _hook_settings(
    on_end: Any, on_end_command: Any, on_end_timeout: float | None, on_end_env: Any
) -> WorkerSettings:
    given = {
        "on_end": on_end,
        "on_end_command": on_end_command,
        "on_end_timeout": on_end_timeout,
        "on_end_env": on_end_env,
    }
    return WorkerSettings(**{key: value for key, value in given.items() if value is not None})


def run_upstream(url: str | None, **given: Any) -> UpstreamSettings:
    """The upstream of `run` or `submit`, with the options that the user gave."""
    if url is None:
        raise CommandError("no upstream: give --upstream URL or set BATCHLINE_UPSTREAM")
    if not url.startswith(urls.SCHEMES):
        raise CommandError(f"--upstream {url!r}: give a URL that begins with http:// or https://")
    options = {key: value for key, value in given.items() if value is not None}
    return UpstreamSettings("", urls.normalized(url), **options)


def _reserved(settings: RunSettings) -> RunSettings:
    """Workers leave the batch to `run`, unless they are asked to take it.

    Not that of a provider: its tasks are counted by routing key, from all workers.
    """
    return msgspec.structs.replace(settings, reserved=settings.provider is None)


def _worker_settings(concurrency: int, body_memory: int | None) -> WorkerSettings:
    usual = WorkerSettings(concurrency=concurrency)
    return usual if body_memory is None else replace(usual, body_memory=body_memory)


def check_window(window: str) -> None:
    try:
        window_or_none(window)
    except InvalidWindow as error:
        raise CommandError(str(error)) from error


def _errors_beside(target: OutputTarget, usual: Path) -> Path:
    """The error file beside the output, or beside the default output if that is not a file."""
    path = target.given if target.is_file else usual
    return (path.with_suffix("") if path.suffix in (".gz", ".zst") else path).with_suffix(".errors.jsonl")


def _check_targets(
    outputs: Outputs, target: OutputTarget, others: Sequence[OutputTarget], inputs: Sequence[Path]
) -> None:
    """Check before anything runs that all files may be written."""
    if target.is_file and any(target.path == other.path for other in others):
        raise CommandError(f"{target.name}: output and errors need two files")
    for each in (target, *others):
        outputs.check(each, inputs)
