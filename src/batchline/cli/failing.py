"""How commands end when they cannot do what they were asked."""

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from batchline.cli.console import CommandError, report
from batchline.cli.options import Exit
from batchline.store.batches import FileNotFound
from batchline.store.migrate import UnknownRevision
from batchline.store.session import StoreUnavailable


@contextmanager
def failing(as_json: bool) -> Iterator[None]:
    """Turn what can go wrong for a reason into a message and an exit code."""
    try:
        yield
    except CommandError as error:
        raise report(error, as_json) from error
    except StoreUnavailable as error:
        raise report(CommandError(f"the database does not answer: {error}"), as_json) from error
    except (FileNotFound, UnknownRevision) as error:
        raise report(CommandError(str(error)), as_json) from error
    except KeyboardInterrupt as error:
        raise typer.Exit(Exit.INTERRUPTED) from error
