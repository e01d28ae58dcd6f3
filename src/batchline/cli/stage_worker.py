"""The stages of batchline.toml in a worker without an app: they run next to its lines."""

import structlog
import typer

from batchline.app.core import AppLocation
from batchline.app.stage_app import complete_stages, stage_app
from batchline.cli.app_worker import AppBeside, AppOrder, reported_app_errors
from batchline.cli.display.console import CommandError
from batchline.config import SettingsError
from batchline.config.settings import ServerSettings, Settings
from batchline.model import DEFAULT_TENANT
from batchline.operations.catalog import OperationCatalog
from batchline.operations.http_stage import HttpStage

_log = structlog.get_logger("batchline.worker")


def stages_of(server: ServerSettings) -> tuple[HttpStage, ...]:
    """The stages of the settings. Raises CommandError for a mistake in one."""
    if not server.stages:
        return ()
    # Their templates need Jinja, which takes a while to import.
    from batchline.operations.declared_stages import declared_stages

    try:
        return declared_stages(server)
    except SettingsError as error:
        raise CommandError(str(error)) from error


def check_stages(server: ServerSettings) -> None:
    """Raises CommandError for a mistake that would end the worker of a server."""
    catalog = OperationCatalog()
    with reported_app_errors():
        for stage in complete_stages(stages_of(server)):
            catalog.add(stage)
        catalog.check()


def stages_beside(
    context: typer.Context, settings: Settings, server: ServerSettings, order: AppOrder
) -> AppBeside | None:
    """A worker for the stages of the settings; None: there are none. Raises CommandError."""
    stages = stages_of(server)
    complete = complete_stages(stages)
    names = {stage.name for stage in stages}
    for stage in stages:
        if stage not in complete:
            # Empty if it leads to them through another stage, which has a line of its own.
            functions = ", ".join(name for name in stage.options.emits if name not in names)
            _log.warning(
                "a stage leads to functions, so a worker of their app must run it",
                stage=stage.name,
                functions=functions,
            )
    if not complete:
        return None
    if context.params["max_items"] is not None:
        raise CommandError(
            "--max-items counts the items of one worker, and the stages of the settings have a worker of"
            " their own; leave it out, or give --config a file without [stages]"
        )
    location = AppLocation(settings.database, settings.data_dir, server.objects, DEFAULT_TENANT)
    return AppBeside(order, stage_app(location, complete))
