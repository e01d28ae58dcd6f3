"""`batchline simulate`: a simulated upstream for demos and tests."""

import inspect
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from batchline.cli import options
from batchline.cli.display.console import CommandError, err, print_json
from batchline.cli.errors import reported_errors
from batchline.simulate.settings import SimulateSettings
from batchline.simulate.settings import options as simulate_options

# A user knows this address; tests and demos take a free port.
_PORT = 8000


def register(app: typer.Typer) -> None:
    # The command's signature, from which typer makes the options, comes from the settings.
    simulate.__signature__ = inspect.Signature(list(_parameters()))  # type: ignore[attr-defined]
    app.command("simulate", rich_help_panel=options.PANEL_SET_UP)(simulate)


def _parameters() -> Iterator[inspect.Parameter]:
    for each in simulate_options():
        about = dict(each.metadata)
        option = typer.Option(about.pop("flag", f"--{each.name.replace('_', '-')}"), **about)
        default: Any = _PORT if each.name == "port" else each.default
        # typer takes a list for an option that may be repeated.
        repeated = isinstance(default, tuple)
        yield inspect.Parameter(
            each.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=list(default) if repeated else default,
            annotation=Annotated[list[str] if repeated else each.type, option],
        )
    yield inspect.Parameter("as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=options.Json)


def simulate(*, as_json: bool, models: list[str], **settings: Any) -> None:
    """Serve an OpenAI-compatible upstream that answers at once, slowly, or not at all, by its options.

    GET /stats reports what it executed, GET /tasks its background responses.
    """
    # Imported here because no other command needs it and it takes a tenth of their start.
    from batchline.simulate.server import serve

    with reported_errors(as_json):
        try:
            chosen = SimulateSettings(**settings, models=tuple(models))
        except ValueError as error:
            raise CommandError(str(error)) from error
        try:
            serve(chosen, on_ready=lambda host, port: _ready(host, port, as_json))
        except OSError as error:
            address = f"{chosen.host}:{chosen.port}"
            raise CommandError(f"cannot listen on {address}: {error.strerror or error}") from error


def _ready(host: str, port: int, as_json: bool) -> None:
    if as_json:
        print_json({"url": f"http://{host}:{port}"})
    else:
        err().print(f"simulated upstream at http://{host}:{port}, Ctrl-C stops it")
