"""Hooks for tests: small programs and functions that write down what they get."""

import json
import sys
from pathlib import Path
from typing import Any

from batchline.hooks.hook import Hook, Hooks
from batchline.store import hooks, maintenance
from batchline.store.session import Session

MINIMAL = {"PATH": "/usr/bin:/bin"}


def python_hook(name: str, code: str) -> Hook:
    """A hook that runs Python code."""
    return Hook(name, (sys.executable, "-c", code))


def recording(folder: Path, name: str = "recorder") -> Hook:
    """A hook that writes each event into a file of its own."""
    code = "import sys, os, pathlib as p; p.Path(sys.argv[1], str(os.getpid())).write_text(sys.stdin.read())"
    folder.mkdir(exist_ok=True)
    return Hook(name, (sys.executable, "-c", code, str(folder)))


def recorded(folder: Path) -> list[dict[str, Any]]:
    """What a recording hook has got so far. A file that is still being written does not count."""
    found = [path.read_text() for path in sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime_ns)]
    return [json.loads(text) for text in found if text.endswith("}")]


def some_hooks(*each: Hook, timeout: float = 60.0) -> Hooks:
    return Hooks(each, timeout, MINIMAL)


async def fan_out(db: Session) -> int:
    """Make deliveries of all events; how many."""
    created = 0
    while (event := await maintenance.take_event(db)) is not None:
        created += await hooks.fan_out(db, event.id)
        await maintenance.event_delivered(db, event.id)
    return created
