"""`batchline run`: its options. `run_batch` does the work."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from batchline.batches.creation import InvalidWindow, window_or_none
from batchline.cli import options, run_batch
from batchline.cli.display.console import CommandError, err, print_json
from batchline.cli.display.failures import failure_lines
from batchline.cli.errors import reported_errors
from batchline.cli.failure_limits import with_failure_limits
from batchline.cli.files import check_inputs
from batchline.cli.forecast import estimate
from batchline.cli.runtime import open_runtime, run_async, written_files
from batchline.cli.server_settings import hooks_in
from batchline.cli.spending import requested_spending, with_spending
from batchline.cli.targets import Outputs, OutputTarget, target_at
from batchline.config.settings import UpstreamSettings, WorkerSettings
from batchline.upstreams import urls


def register(app: typer.Typer) -> None:
    app.command("run")(run_inputs)


def run_inputs(
    inputs: options.Inputs,
    upstream: options.Upstream = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="OUT.jsonl", help="Default: INPUT.output.jsonl")
    ] = None,
    errors: Annotated[
        Path | None, typer.Option("--errors", metavar="ERR.jsonl", help="Default: OUT.errors.jsonl")
    ] = None,
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
    max_cost: options.MaxCost = None,
    max_tokens: options.MaxTokens = None,
    sample: options.Sample = None,
    yes: Annotated[bool, typer.Option("--yes", help="After --sample, run the rest without asking.")] = False,
    only_estimate: Annotated[
        bool, typer.Option("--estimate", help="Send nothing; print a rough forecast of tokens and cost.")
    ] = False,
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
    config: options.Config = None,
    database: options.Database = None,
    data_dir: options.DataDir = None,
    as_json: options.Json = False,
) -> None:
    """Run every line of INPUT against a model server. The same command again continues where it stopped.

    Lines that an earlier run has answered are not sent again, unless --fresh is given.

    Exit code 0: all lines completed. 1: some did not; the error file says why. 2: bad input or usage; nothing
    was sent. 3: paused: too many lines failed, a cap is reached, or the sample is done. 130: interrupted.
    """
    with reported_errors(as_json):
        spending = requested_spending(config, max_cost, max_tokens)
        if only_estimate:
            check_inputs(inputs)
            estimate(inputs, spending, database, data_dir, as_json)
            return
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
        check_inputs(inputs)
        hooks = hooks_in(_hook_settings(on_end, on_end_command, on_end_timeout, on_end_env))
        usual = inputs[0].with_suffix(".output.jsonl")
        target = target_at(output or usual)
        errors_target = target_at(errors or _errors_beside(target, usual))
        outputs = Outputs(written_files(data_dir), force)
        _check_targets(outputs, target, errors_target, inputs)
        if as_json and target.is_stdout:
            raise CommandError("--json prints one document on stdout; give -o FILE for the lines")
        order = run_batch.RunOrder(
            inputs=tuple(inputs),
            settings=with_spending(with_failure_limits(server.run_settings(), max_failed), spending),
            output=target,
            errors=errors_target,
            outputs=outputs,
            window=window,
            worker=_worker_settings(server.concurrency, body_memory),
            fresh=fresh,
            retry_failed=retry_failed,
            hooks=hooks,
            as_json=as_json,
            command=run_batch.resume_command(),
            sample=sample,
            yes=yes,
        )
        with open_runtime(database, data_dir, to_work=True) as runtime:
            outcome = run_async(run_batch.run(order, runtime))
        if as_json:
            print_json(run_batch.describe(order, outcome))
        else:
            # The summary is last, because it can end with the command to give next.
            for line in failure_lines(outcome.causes):
                order.console().print(f"  {line}", markup=False)
            for line in run_batch.summary_lines(order, outcome):
                (err() if outcome.interrupted else order.console()).print(line, markup=False)
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
    return (target.given if target.is_file else usual).with_suffix(".errors.jsonl")


def _check_targets(
    outputs: Outputs, target: OutputTarget, errors: OutputTarget, inputs: Sequence[Path]
) -> None:
    """Check before anything runs that both files may be written."""
    if target.is_file and target.path == errors.path:
        raise CommandError(f"{target.name}: output and errors need two files")
    for each in (target, errors):
        outputs.check(each, inputs)
