"""No other local user can read prompts and answers, or get into the embedded server; also not as root."""

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from batchline.embedded import EmbeddedPostgres, EmbeddedPostgresError
from batchline.files.objects import Objects, ObjectStoreUnavailable
from tests.support.accounts import NOBODY, everything_in, readable_by_others
from tests.support.processes import batchline, simulated, write_requests

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that everybody may enter and list, as a careless one."""
    folder = Path(tempfile.mkdtemp(prefix="batchline-open-", dir="/tmp"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def open_to_others(folder: Path) -> list[str]:
    found = []
    for path in everything_in(folder):
        with suppress(FileNotFoundError):
            mode = path.lstat().st_mode
            if mode & 0o077 and not stat.S_ISLNK(mode):
                found.append(f"{path.relative_to(folder)} {mode & 0o777:03o}")
    return found


@AS_ROOT
def test_another_user_gets_at_nothing_that_root_runs(open_folder: Path) -> None:
    inputs, data = write_requests(open_folder / "in.jsonl", 3), open_folder / "data"
    with simulated() as upstream:
        done = batchline("run", str(inputs), "--upstream", upstream.url, "--data-dir", str(data))
    assert done.returncode == 0, done.stderr
    with EmbeddedPostgres.start(data):
        paths = list(everything_in(data))
        assert any(path.is_socket() for path in paths), "this test needs the server's socket"
        assert any("outputs" in path.parts and path.is_file() for path in paths), "and an output"
        assert readable_by_others(paths) == []
        assert open_to_others(data) == [". 710"], "the server's account passes through, and nobody else"
        assert data.stat().st_gid == (data / "postgres").stat().st_gid


@AS_ROOT
def test_root_closes_what_was_open_and_keeps_it_closed(open_folder: Path) -> None:
    data = open_folder / "data"
    for mode in (0o755, 0o701, 0o700):
        data.mkdir(exist_ok=True)
        data.chmod(mode)
        with EmbeddedPostgres.start(data):
            assert readable_by_others([data, data / "postgres.log", data / "postgres"]) == []
            assert data.stat().st_mode & 0o777 == 0o710


@AS_ROOT
def test_parent_folders_can_be_traversed_only_by_the_servers_account(open_folder: Path) -> None:
    closed = open_folder / "closed"
    closed.mkdir(mode=0o700)
    secret = closed / "secret.txt"
    secret.write_text("readable, if one could get here")
    secret.chmod(0o644)
    with EmbeddedPostgres.start(closed / "data"):
        assert readable_by_others([secret]) == []


@AS_ROOT
def test_a_folder_of_another_user_is_refused(open_folder: Path) -> None:
    data = open_folder / "data"
    data.mkdir()
    os.chown(data, NOBODY, NOBODY)
    with pytest.raises(EmbeddedPostgresError, match="belongs to another user"):
        EmbeddedPostgres.start(data)
    with pytest.raises(ObjectStoreUnavailable, match="belongs to another user"):
        Objects.at(data)


def test_a_folder_with_files_of_yours_is_refused_and_not_closed(open_folder: Path) -> None:
    (open_folder / "diary.txt").write_text("mine")
    refused = batchline("list", "--data-dir", str(open_folder))
    assert refused.returncode == 2
    assert "chmod 700" in refused.stderr
    with pytest.raises(ObjectStoreUnavailable, match="chmod 700"):
        Objects.at(open_folder)
    assert open_folder.stat().st_mode & 0o777 == 0o755
    assert [path.name for path in open_folder.iterdir()] == ["diary.txt"]


def test_the_folder_of_an_outside_database_is_closed_too(open_folder: Path, database_url: str) -> None:
    data = open_folder / "data"
    (data / "objects").mkdir(parents=True)
    for folder in (data, data / "objects"):
        folder.chmod(0o755)
    inputs = write_requests(open_folder / "in.jsonl", 3)
    with simulated() as upstream:
        location = ("--database", database_url, "--data-dir", str(data))
        done = batchline("run", str(inputs), "--upstream", upstream.url, *location)
    assert done.returncode == 0, done.stderr
    assert (open_folder / "in.output.jsonl").stat().st_mode & 0o777 == 0o666 & ~_umask()
    assert list((data / "objects" / "outputs").rglob("*.jsonl"))
    assert open_to_others(data) == []


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
