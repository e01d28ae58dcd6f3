"""`batchline run`, as the command line sees it."""

from pathlib import Path
from typing import Annotated

import typer

from batchline.cli import options, run
from batchline.cli.console import CommandError, err, out, print_json
from batchline.cli.failing import failing
from batchline.cli.files import check_inputs
from batchline.cli.options import Exit
from batchline.cli.place import open_place, run_async
from batchline.engine.batches import InvalidWindow, window_seconds
from batchline.model import RunSettings


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
    concurrency: options.Concurrency = 64,
    max_attempts: options.MaxAttempts = 5,
    timeout: options.Timeout = 600.0,
    window: options.Window = "24h",
    fresh: Annotated[bool, typer.Option("--fresh", help="Start anew instead of going on.")] = False,
    database: options.Database = None,
    data_dir: options.DataDir = None,
    as_json: options.Json = False,
) -> None:
    """Run every line of INPUT against a model server; the same command again goes on where it stopped.

    Exit code 0: all completed. 1: some failed, and where their errors are. 2: bad input or usage, nothing
    was run. 130: interrupted.
    """
    with failing(as_json):
        settings = run_settings(upstream, api_key_env, max_attempts, timeout)
        check_window(window)
        check_inputs(inputs)
        target = _writable(output or inputs[0].with_suffix(".output.jsonl"))
        order = run.RunOrder(
            inputs=tuple(inputs),
            settings=settings,
            output=target,
            errors=_writable(errors or target.with_suffix(".errors.jsonl")),
            window=window,
            concurrency=concurrency,
            fresh=fresh,
            as_json=as_json,
            command=run.resume_command(),
        )
        with open_place(database, data_dir, to_work=True) as place:
            outcome = run_async(run.run(order, place))
        if as_json:
            print_json(run.describe(order, outcome))
        else:
            (err() if outcome.interrupted else out()).print(run.summary_line(order, outcome), markup=False)
        raise typer.Exit(Exit.INTERRUPTED if outcome.interrupted else run.exit_code(outcome.batch))


def run_settings(
    upstream: str | None, api_key_env: str | None, max_attempts: int, timeout: float
) -> RunSettings:
    if upstream is None:
        raise CommandError("no upstream: give --upstream URL or set BATCHLINE_UPSTREAM")
    if not upstream.startswith(("http://", "https://")):
        raise CommandError(f"--upstream {upstream!r}: give a URL that begins with http:// or https://")
    return RunSettings(
        upstream=upstream.rstrip("/"), api_key_env=api_key_env, max_attempts=max_attempts, timeout=timeout
    )


def check_window(window: str) -> None:
    try:
        window_seconds(window)
    except InvalidWindow as error:
        raise CommandError(str(error)) from error


def _writable(path: Path) -> Path:
    """Where the output goes must be there before anything runs, not after."""
    if path.is_dir():
        raise CommandError(f"{path} is a folder; give a file to write to")
    if not path.absolute().parent.is_dir():
        raise CommandError(f"{path}: its folder does not exist")
    return path.absolute()
