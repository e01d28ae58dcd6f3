"""The operations of an app, and how their stages follow each other."""

import sys
from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Any, cast

from batchline.model.batch import Collecting
from batchline.operations.errors import InvalidApp
from batchline.operations.http_stage import HttpStage
from batchline.operations.names import function_home
from batchline.operations.operation import AnyOperation, check_begins
from batchline.operations.options import PROCESS


class OperationCatalog:
    """Operations by name."""

    def __init__(self) -> None:
        self._operations: dict[str, AnyOperation] = {}
        self._by_url: dict[str, AnyOperation] = {}

    def __iter__(self) -> Iterator[AnyOperation]:
        return iter(list(self._operations.values()))

    def __len__(self) -> int:
        return len(self._operations)

    def add(self, operation: AnyOperation) -> None:
        """Raises InvalidApp if the name is taken by another function. The same one may be defined again: a
        notebook does that."""
        known = self._operations.get(operation.name)
        if known is not None and function_home(known.function) != function_home(operation.function):
            raise InvalidApp(
                f"there are two operations {operation.name!r}: {_home(known)} and {_home(operation)}."
                ' Give one of them another name: name="…"'
            )
        self._operations[operation.name] = self._by_url[operation.url] = operation

    def find(self, name: str) -> AnyOperation | None:
        return self._operations.get(name)

    def find_url(self, url: str) -> AnyOperation | None:
        """The operation that runs items of lanes with this url."""
        return self._by_url.get(url)

    def check(self) -> None:
        """Raises InvalidApp for wrong stages, cycles, and functions that a child process cannot import."""
        for operation in self:
            self.stages_of(operation)
            if operation.options.collects is not None:
                self._stage(operation, "collects", operation.options.collects)
            if operation.options.run_in == PROCESS:
                _check_found(operation)

    def stages_of(self, operation: AnyOperation) -> tuple[AnyOperation, ...]:
        """The operation and all that can follow, each once and before those that follow it. Raises
        InvalidApp."""
        finished: list[AnyOperation] = []
        self._visit(operation, finished, ())
        return tuple(reversed(finished))

    def collecting(self, stages: Sequence[AnyOperation]) -> tuple[Collecting, ...]:
        """Those of the stages of a batch that collect results of others, in the order in which they run.
        Raises InvalidApp if the first one does: nothing would be there to collect."""
        check_begins(stages[0])
        return tuple(
            Collecting(stage.url, self._stage(stage, "collects", source).url, stage.options.by_key)
            for stage in stages
            if (source := stage.options.collects) is not None
        )

    def _visit(self, operation: AnyOperation, finished: list[AnyOperation], path: tuple[str, ...]) -> None:
        if operation.name in path:
            cycle = [*path[path.index(operation.name) :], operation.name]
            where = _position(operation, "emits")
            raise InvalidApp(f"{where}stages follow each other in a cycle: {' → '.join(cycle)}")
        if operation in finished:
            return
        # Backwards, because the result is reversed: stages keep the order in which `emits` lists them.
        collectors = [each for each in self if each.options.collects == operation.name]
        emitted = [self._emitted(operation, name) for name in operation.options.emits]
        for stage in reversed([*emitted, *collectors]):
            self._visit(stage, finished, (*path, operation.name))
        finished.append(operation)

    def _emitted(self, operation: AnyOperation, name: str) -> AnyOperation:
        stage = self._stage(operation, "emits", name)
        if (source := stage.options.collects) is not None:
            raise InvalidApp(
                f"{_position(operation, 'emits')}operation {operation.name!r} emits {name!r}, which collects"
                f" results of {source!r} and gets no other items; emit {source!r}"
            )
        return stage

    def _stage(self, operation: AnyOperation, verb: str, name: str) -> AnyOperation:
        stage = self.find(name)
        if stage is None:
            raise InvalidApp(
                f"{_position(operation, verb)}operation {operation.name!r} {verb} {name!r}, which is no"
                " operation of this app"
            )
        return stage


def _home(operation: AnyOperation) -> str:
    if isinstance(operation, HttpStage):
        return operation.settings.position_of("")
    return ".".join(function_home(operation.function))


def _position(operation: AnyOperation, key: str) -> str:
    """Where a mistake is, if the operation is a stage of a file."""
    return f"{operation.settings.position_of(key)}: " if isinstance(operation, HttpStage) else ""


def _check_found(operation: AnyOperation) -> None:
    module, qualname = function_home(operation.function)
    try:
        found: object = reduce(getattr, qualname.split("."), cast(Any, sys.modules[module]))
    except (KeyError, AttributeError):
        found = None
    if found is not operation and found is not operation.function:
        raise InvalidApp(
            f'operation {operation.name!r} has run_in="process", but {module}.{qualname} is not this'
            " function, so a child process cannot import it"
        )
