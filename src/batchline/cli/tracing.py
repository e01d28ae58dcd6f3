"""Tracing of a command: its settings, its start and its end, and the trace of what it submits."""

import os
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from pathlib import Path

from batchline.cli.display.console import CommandError
from batchline.cli.server_settings import check_own_file
from batchline.config import DEFAULT_NAME, SettingsError, load
from batchline.config.settings import Settings, TraceSettings
from batchline.traces.submissions import SubmissionSpan
from batchline.traces.tracing import Tracing, TracingUnavailable, open_tracing, require_extra

_VARIABLES = "BATCHLINE_TRACES_"
# The trace of the program that has started this one, as OpenTelemetry's convention for variables has it.
_CALLER = "TRACEPARENT"


def trace_settings(config: Path | None) -> TraceSettings:
    """For a command that reads no other settings: those of the file and of the environment. Raises
    CommandError."""
    usual = Path(DEFAULT_NAME)
    path = config or (usual.absolute() if usual.is_file() else None)
    variables = {name: value for name, value in os.environ.items() if name.startswith(_VARIABLES)}
    try:
        settings = load(path, variables)
    except SettingsError as error:
        raise CommandError(str(error)) from error
    return checked(settings, path)


def checked(settings: Settings, path: Path | None) -> TraceSettings:
    """How to trace, by the file at `path` or otherwise. Raises CommandError if that cannot be done here.

    Whoever writes the file gets the key that is sent to the endpoint, so it must be the user's own."""
    check_own_file(settings, path, ("traces.endpoint", "traces.headers_to"), "an endpoint for traces")
    try:
        require_extra(settings.traces)
    except TracingUnavailable as error:
        raise CommandError(str(error)) from error
    return settings.traces


@asynccontextmanager
async def traced(settings: TraceSettings) -> AsyncIterator[Tracing | None]:
    """None if nothing is traced. At the end, what is left is sent."""
    tracing = open_tracing(settings)
    try:
        yield tracing
    finally:
        if tracing is not None:
            await tracing.spans.close()


def submitting(tracing: Tracing | None, command: str) -> AbstractContextManager[None]:
    """A batch that is created in here carries the trace of the command."""
    if tracing is None:
        return nullcontext()
    return tracing.batches.submitting(SubmissionSpan(command), "producer", os.environ.get(_CALLER))
