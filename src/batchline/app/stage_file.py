"""The stages of an app's settings file."""

import os
from pathlib import Path

from batchline.config import SettingsError, load
from batchline.operations.errors import InvalidApp
from batchline.operations.http_stage import HttpStage


def stages_in(config: str | Path) -> tuple[HttpStage, ...]:
    """The stages that the file declares, with its upstreams. Raises InvalidApp."""
    # Its templates need Jinja, which takes a while to import.
    from batchline.operations.declared_stages import declared_stages

    try:
        return declared_stages(load(Path(config), os.environ).server)
    except SettingsError as error:
        raise InvalidApp(str(error)) from error
