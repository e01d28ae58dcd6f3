"""An app that has stages of batchline.toml, and no functions."""

from collections.abc import Sequence

from batchline.app.batchline import Batchline
from batchline.app.core import AppLocation
from batchline.operations.http_stage import HttpStage


def stage_app(location: AppLocation, stages: Sequence[HttpStage]) -> Batchline:
    """An app with these stages."""
    app = Batchline(
        location.database, data_dir=location.data_dir, objects=location.objects, tenant=location.tenant
    )
    for stage in stages:
        app._core.catalog.add(stage)
    return app


def complete_stages(stages: Sequence[HttpStage]) -> list[HttpStage]:
    """The stages whose items pass only through these stages. Others need functions of an app."""
    found = list(stages)
    while True:
        names = {stage.name for stage in found}
        kept = [stage for stage in found if names.issuperset(stage.options.emits)]
        if len(kept) == len(found):
            return found
        found = kept
