"""The runtime of a command: that of the app, with messages for people."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from batchline.app.runtime import Runtime as Runtime
from batchline.app.runtime import RuntimeUnavailable, opened
from batchline.app.runtime import folder_of as folder_of
from batchline.app.runtime import run_async as run_async
from batchline.cli.display.console import CommandError
from batchline.cli.display.startup import starting_postgresql
from batchline.cli.written import WrittenFiles


@contextmanager
def open_runtime(
    database: str | None,
    data_dir: Path | None,
    *,
    objects: str | None = None,
    migrated: bool = True,
    to_work: bool = False,
) -> Iterator[Runtime]:
    """As `app.runtime.opened`, but say that PostgreSQL starts, and raise CommandError."""
    starting = partial(starting_postgresql, lasting=to_work)
    try:
        with opened(
            database, data_dir, objects=objects, migrated=migrated, to_work=to_work, starting=starting
        ) as runtime:
            yield runtime
    except RuntimeUnavailable as error:
        raise CommandError(str(error)) from error


def written_files(data_dir: Path | None) -> WrittenFiles:
    return WrittenFiles(folder_of(data_dir) / "written")
