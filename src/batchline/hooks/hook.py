"""The hooks of a worker: what each runs, its name, and the environment that it gets.

What a hook runs comes from local flags and settings alone, or from the app of a Python worker. The database
knows its name, which says nothing secret: a command's arguments are in it as a hash only. Two workers with
the same hook share its deliveries.
"""

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from batchline.config.settings import WorkerSettings
from batchline.hooks.function import FunctionHook

# Variables that programs need and that hold no secrets. All others stay with the worker: its environment has
# the API keys of upstreams and the database's password.
ALLOWED = frozenset(
    (
        *("PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "SYSTEMROOT"),
        *("PYTHONPATH", "SSL_CERT_FILE", "SSL_CERT_DIR"),
        *("LC_ALL", "LC_CTYPE", "LC_COLLATE", "LC_MESSAGES", "LC_MONETARY", "LC_NUMERIC", "LC_TIME"),
    )
)
# To import a module that is slow to import takes a while on a busy machine.
_CHECK_LIMIT = 60.0


class HookRefused(ValueError):
    """A hook of the settings cannot be run. The message is for a person."""


@dataclass(frozen=True, slots=True)
class Hook:
    """A name, and the words of its command: a program and its arguments. There is no shell."""

    name: str
    command: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Hooks:
    hooks: tuple[Hook | FunctionHook, ...] = ()
    timeout: float = 60.0
    environment: Mapping[str, str] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(hook.name for hook in self.hooks)

    def named(self, name: str) -> Hook | FunctionHook:
        return next(hook for hook in self.hooks if hook.name == name)


def hooks_of(settings: WorkerSettings, environ: Mapping[str, str]) -> Hooks:
    """The hooks of the settings, checked: each can be started. Raises HookRefused."""
    allowed = ALLOWED.union(settings.on_end_env)
    environment = {name: value for name, value in environ.items() if name in allowed}
    functions = [_function(target, environment) for target in dict.fromkeys(settings.on_end)]
    commands = [_program(settings.on_end_command, environment)] if settings.on_end_command else []
    return Hooks((*functions, *commands), settings.on_end_timeout, environment)


def _function(target: str, environment: Mapping[str, str]) -> Hook:
    # -P: the current folder is searched last (`call`), so a file in it replaces no installed module.
    command = (sys.executable, "-P", "-m", "batchline.hooks.call", target)
    # In a process, as later: to import the module here would run its code with the worker's secrets.
    try:
        checked = subprocess.run(
            [*command, "--check"],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_CHECK_LIMIT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise HookRefused(f"--on-end {target}: it could not be imported within {_CHECK_LIMIT:g} s") from None
    if checked.returncode != 0:
        lines = checked.stderr.decode(errors="replace").strip().splitlines()
        raise HookRefused(f"--on-end {target}: {lines[-1] if lines else 'it cannot be imported'}")
    return Hook(target, command)


def _program(words: Sequence[str], environment: Mapping[str, str]) -> Hook:
    found = shutil.which(words[0], path=environment.get("PATH"))
    if found is None:
        raise HookRefused(
            f"--on-end-command: there is no program {words[0]!r}; give the path of an executable file,"
            " and a script a first line such as #!/bin/sh"
        )
    digest = hashlib.sha256("\0".join(words).encode()).hexdigest()[:8]
    # Absolute, so that it stays the same file.
    return Hook(f"{Path(found).name}-{digest}", (str(Path(found).absolute()), *words[1:]))
