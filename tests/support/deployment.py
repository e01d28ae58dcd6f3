"""The programs that the files in deploy/ start, read from these files: their arguments and their variables.

No container is built or started. A test runs the programs with the same arguments and the same variables, in
which only the addresses and folders of this machine replace those of the containers.
"""

import ctypes
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from tests.support.accounts import NOBODY
from tests.support.repository import ROOT
from tests.support.waiting import LIMIT

DEPLOY = ROOT / "deploy"
PROGRAM = Path(sys.executable).parent / "batchline"
_PR_SET_MDWE, _PR_MDWE_REFUSE_EXEC_GAIN = 65, 1


@dataclass(frozen=True, slots=True)
class Program:
    """One process of a deployment, or `copies` equal ones."""

    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    copies: int = 1
    # No memory may become executable, as systemd's MemoryDenyWriteExecute forbids it.
    no_new_code: bool = False

    def moved(self, locations: Mapping[str, str]) -> "Program":
        """With other addresses and folders."""

        def move(text: str) -> str:
            for before, after in locations.items():
                text = text.replace(before, after)
            return text

        return replace(
            self,
            arguments=tuple(map(move, self.arguments)),
            environment={name: move(value) for name, value in self.environment.items()},
        )


@dataclass
class Started:
    process: subprocess.Popen[str]
    log: Path

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(LIMIT)

    @property
    def said(self) -> str:
        return self.log.read_text()


@dataclass
class Machine:
    """Where programs run: a folder, and an account that is not root and owns nothing else."""

    folder: Path
    started: list[Started] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.folder.chmod(0o755)
        self.state = self.folder / "state"
        self.state.mkdir(mode=0o700)
        if self._account is not None:
            os.chown(self.state, self._account, self._account)

    @property
    def _account(self) -> int | None:
        """None: the test is not root's, or others may not enter the folders of the project and of Python."""
        needed = {*PROGRAM.parents, *Path(sys.executable).resolve().parents}
        open_to_all = all(folder.stat().st_mode & 0o001 for folder in needed)
        return NOBODY if os.geteuid() == 0 and open_to_all else None

    def run(self, program: Program, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run it to its end. `arguments` replace its own."""
        chosen = replace(program, arguments=arguments or program.arguments)
        return subprocess.run(**self._how(chosen), capture_output=True, text=True, timeout=LIMIT)

    def start(self, program: Program) -> list[Started]:
        new = [self._start(program) for _ in range(program.copies)]
        self.started += new
        return new

    def _start(self, program: Program) -> Started:
        log = self.folder / f"{len(list(self.folder.glob('*.log')))}.log"
        with log.open("w") as stream:
            process = subprocess.Popen(
                **self._how(program), stdout=stream, stderr=subprocess.STDOUT, text=True
            )
        return Started(process, log)

    def _how(self, program: Program) -> dict[str, Any]:
        return {
            "args": [str(PROGRAM), *program.arguments],
            "env": {"PATH": os.environ["PATH"], "HOME": "/nonexistent", **program.environment},
            "cwd": "/",
            "user": self._account,
            "group": self._account,
            "extra_groups": None if self._account is None else [],
            "preexec_fn": _forbid_new_code if program.no_new_code else None,
        }

    def stop(self) -> list[int]:
        """Ask all to end, all at once; their exit codes."""
        for each in self.started:
            each.process.send_signal(signal.SIGTERM)
        return [each.process.wait(LIMIT) for each in self.started]

    def kill(self) -> None:
        for each in self.started:
            if each.process.poll() is None:
                each.process.kill()
                each.process.wait()


@contextmanager
def a_machine(folder: Path) -> Iterator[Machine]:
    machine = Machine(folder)
    try:
        yield machine
    except BaseException:
        for each in machine.started:
            print(each.said[-2000:])
        raise
    finally:
        machine.kill()


def _forbid_new_code() -> None:
    """Linux before 6.3 has no such call, and the programs then run without it."""
    ctypes.CDLL(None).prctl(_PR_SET_MDWE, _PR_MDWE_REFUSE_EXEC_GAIN, 0, 0, 0)


# The image


@dataclass(frozen=True, slots=True)
class Instruction:
    name: str
    rest: str


def stages(path: Path = DEPLOY / "docker" / "Dockerfile") -> list[list[Instruction]]:
    """The instructions of a Dockerfile; the first list is what comes before any FROM."""
    text = re.sub(r"^#.*\n", "", path.read_text(), flags=re.M).replace("\\\n", " ")
    found: list[list[Instruction]] = [[]]
    for line in filter(str.strip, text.splitlines()):
        name, rest = line.split(None, 1)
        if name == "FROM":
            found.append([])
        found[-1].append(Instruction(name, " ".join(rest.split())))
    return found


def image_variables() -> dict[str, str]:
    pairs = [shlex.split(each.rest) for each in stages()[-1] if each.name == "ENV"]
    return dict(pair.split("=", 1) for line in pairs for pair in line)


def image_argument(name: str) -> list[str]:
    """The value of the last ENTRYPOINT or CMD."""
    (value,) = [each.rest for each in stages()[-1] if each.name == name]
    found: list[str] = yaml.safe_load(value)
    return found


def _in_image(arguments: Sequence[str], environment: Mapping[str, str], copies: int = 1) -> Program:
    assert image_argument("ENTRYPOINT") == ["batchline"]
    # The test's own PATH leads to the program.
    variables = {name: value for name, value in image_variables().items() if name != "PATH"}
    return Program(tuple(arguments), {**variables, **environment}, copies)


# Compose


def compose(name: str, variables: Mapping[str, str]) -> dict[str, Any]:
    """A compose file, with its variables replaced."""

    def value(found: re.Match[str]) -> str:
        key, how, other = found["name"], found["how"], found["other"]
        if variables.get(key):
            return variables[key]
        assert how == ":-", f"{key}: {other}"
        return str(other)

    text = (DEPLOY / "compose" / name).read_text()
    pattern = r"\$\{(?P<name>\w+)(?P<how>:[-?])(?P<other>[^}]*)\}"
    # `!reset` removes what another file has.
    loaded: dict[str, Any] = yaml.safe_load(re.sub(pattern, value, text).replace("!reset []", "[]"))
    return loaded


def compose_program(service: Mapping[str, Any]) -> Program:
    copies = service.get("deploy", {}).get("replicas", 1)
    return _in_image(service["command"], service["environment"], copies)


# systemd


def unit(name: str) -> dict[str, list[str]]:
    """The settings of a unit, each with its values in order."""
    found: dict[str, list[str]] = {}
    for line in (DEPLOY / "systemd" / name).read_text().splitlines():
        if line and line[0] not in "#[":
            key, value = line.split("=", 1)
            found.setdefault(key, []).append(value)
    return found


def unit_program(name: str, environment_file: Mapping[str, str], copies: int = 1) -> Program:
    settings = unit(name)
    (command,) = settings["ExecStart"]
    program, *arguments = command.split()
    assert program == "/opt/batchline/bin/batchline"
    variables = dict(pair.split("=", 1) for pair in settings["Environment"])
    no_new_code = settings["MemoryDenyWriteExecute"] == ["yes"]
    return Program(tuple(arguments), {**variables, **environment_file}, copies, no_new_code)


# Kubernetes


def pod_program(
    manifest: Mapping[str, Any], secrets: Mapping[str, Mapping[str, str]]
) -> tuple[Program, Mapping[str, Any]]:
    """The program of a Job or a Deployment, and its container."""
    (container,) = manifest["spec"]["template"]["spec"]["containers"]
    variables = {
        name: value
        for source in container.get("envFrom", [])
        for name, value in secrets[source["secretRef"]["name"]].items()
    }
    for each in container["env"]:
        if "valueFrom" in each:
            reference = each["valueFrom"]["secretKeyRef"]
            variables[each["name"]] = secrets[reference["name"]][reference["key"]]
        else:
            variables[each["name"]] = each["value"]
    copies = manifest["spec"].get("replicas", 1)
    return _in_image(container["args"], variables, copies), container
