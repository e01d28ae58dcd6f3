"""The stages of one `batchline pipeline`, under names of their own.

The names come from the definitions. So no other worker takes the items: its batchline.toml may have other
prompts, and would send them under the same idempotency keys.
"""

import hashlib
from collections import Counter
from collections.abc import Sequence

import msgspec

from batchline.operations.catalog import OperationCatalog
from batchline.operations.errors import InvalidApp
from batchline.operations.http_stage import HttpStage
from batchline.operations.names import MAX_NAME

_DIGITS = 8


def pipeline_stages(declared: Sequence[HttpStage], first: str) -> list[HttpStage]:
    """The stage and all that follow it, each before those that follow it. Raises InvalidApp, also if a row
    could reach one of them twice."""
    stages = _reached(declared, first)
    counts = Counter(name for stage in stages for name in stage.options.emits)
    for name, count in counts.items():
        if count > 1:
            raise InvalidApp(f"{count} stages emit {name!r}, so that a row would have {count} results of it")
    for stage in stages:
        if not stage.options.emits and not stage.options.keep_results:
            where = stage.settings.position_of("keep_results")
            raise InvalidApp(f"{where}: stage {stage.name!r} is the last one, so its results must be kept")
    definitions = encoded_definitions(stages)
    names = {stage.name: _own_name(stage.name, definitions) for stage in stages}
    return [stage.renamed(names) for stage in stages]


def encoded_definitions(stages: Sequence[HttpStage]) -> bytes:
    """The same for the same requests. It does not depend on where the models are served."""
    return msgspec.json.encode([_definition(stage) for stage in stages])


def _reached(declared: Sequence[HttpStage], first: str) -> list[HttpStage]:
    catalog = OperationCatalog()
    for stage in declared:
        catalog.add(stage)
    operation = catalog.find(first)
    if operation is None:
        raise InvalidApp(f"there is no stage {first!r}")
    return [stage for stage in catalog.stages_of(operation) if isinstance(stage, HttpStage)]


def _definition(stage: HttpStage) -> tuple[object, ...]:
    declared = stage.settings
    request = (declared.model, declared.prompt, declared.system, declared.params, declared.endpoint)
    return (declared.name, *request, stage.output, declared.emits)


def _own_name(name: str, definitions: bytes) -> str:
    # With the name, because two long ones may differ only in what is cut.
    digest = hashlib.sha256(definitions + name.encode()).hexdigest()[:_DIGITS]
    return f"{name[: MAX_NAME - _DIGITS - 1]}.{digest}"
