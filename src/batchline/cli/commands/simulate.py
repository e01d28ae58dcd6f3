"""`batchline simulate`: a simulated upstream for demos and tests."""

from typing import Annotated

import typer

from batchline.cli import options
from batchline.cli.display.console import CommandError, err, print_json
from batchline.cli.errors import reported_errors


def register(app: typer.Typer) -> None:
    app.command("simulate")(simulate)


def simulate(
    context: typer.Context,
    port: Annotated[int, typer.Option("--port", min=0, max=65_535, help="0 picks a free port.")] = 8000,
    host: Annotated[str, typer.Option("--host", help="The address to listen on.")] = "127.0.0.1",
    latency_ms: Annotated[
        float, typer.Option("--latency", min=0, metavar="MS", help="Of each answer.")
    ] = 0.0,
    jitter_ms: Annotated[
        float,
        typer.Option("--jitter", min=0, metavar="MS", help="Maximum random time to add to the latency."),
    ] = 0.0,
    concurrency: Annotated[
        int, typer.Option("--concurrency", min=0, help="Requests at once; others queue. 0: no limit.")
    ] = 0,
    rate_limit: Annotated[
        float, typer.Option("--rate-limit", min=0, metavar="RPS", help="Above this rate: 429. 0: no limit.")
    ] = 0.0,
    error_rate: Annotated[
        float, typer.Option("--error-rate", min=0, max=1, help="Share answered with 5xx.")
    ] = 0.0,
    refuse_rate: Annotated[
        float, typer.Option("--refuse-rate", min=0, max=1, help="Share answered with 429.")
    ] = 0.0,
    hang_rate: Annotated[
        float, typer.Option("--hang-rate", min=0, max=1, help="Share never answered.")
    ] = 0.0,
    drop_rate: Annotated[
        float, typer.Option("--drop-rate", min=0, max=1, help="Share whose connection is closed.")
    ] = 0.0,
    seed: Annotated[int, typer.Option("--seed", help="Determines answers and faults.")] = 0,
    keyless: Annotated[
        bool, typer.Option("--keyless", help="Ignore Idempotency-Keys; skip requests of clients that left.")
    ] = False,
    answer_bytes: Annotated[
        int, typer.Option("--answer-bytes", min=0, metavar="N", help="Minimum size of good answers.")
    ] = 0,
    record: Annotated[
        bool, typer.Option("--record", help="Keep every execution for GET /executions.")
    ] = False,
    accept_ms: Annotated[
        float,
        typer.Option("--accept", min=0, metavar="MS", help="Until a background response is accepted."),
    ] = 0.0,
    task_ms: Annotated[
        float,
        typer.Option("--task", min=0, metavar="MS", help="Until a background response is completed."),
    ] = 0.0,
    lose_rate: Annotated[
        float,
        typer.Option("--lose-rate", min=0, max=1, help="Share accepted in the background without an answer."),
    ] = 0.0,
    vanish_rate: Annotated[
        float, typer.Option("--vanish-rate", min=0, max=1, help="Share accepted and never found again.")
    ] = 0.0,
    tasks_file: Annotated[
        str, typer.Option("--tasks-file", metavar="FILE", help="Keeps background responses over restarts.")
    ] = "",
    as_json: options.Json = False,
) -> None:
    """Serve an OpenAI-compatible upstream that answers at once, slowly, or not at all, by its options.

    GET /stats reports what it executed, GET /tasks its background responses.
    """
    # Imported here because no other command needs it and it takes a tenth of their start.
    from batchline.simulate import SimulateSettings, serve

    with reported_errors(as_json):
        try:
            # The parameters have the names of the settings.
            settings = SimulateSettings(
                **{key: context.params[key] for key in context.params if key != "as_json"}
            )
        except ValueError as error:
            raise CommandError(str(error)) from error
        try:
            serve(settings, on_ready=lambda host, port: _ready(host, port, as_json))
        except OSError as error:
            raise CommandError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error


def _ready(host: str, port: int, as_json: bool) -> None:
    if as_json:
        print_json({"url": f"http://{host}:{port}"})
    else:
        err().print(f"simulated upstream at http://{host}:{port}, Ctrl-C stops it")
