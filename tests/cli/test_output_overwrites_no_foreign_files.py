"""`-o` and `--errors` never destroy an input, or a file that Batchline did not write."""

import asyncio
import hashlib
import os
import signal
import stat
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from batchline.cli.written import WrittenFiles
from tests.support.processes import PYTHON, Upstream, batchline, kill, read_lines, simulated, start
from tests.support.processes import write_requests as requests
from tests.support.scripted_upstream import answers, answers_well, upstream_that
from tests.support.waiting import LIMIT, eventually, wait_for

MINE = "this is mine\n"


@pytest.fixture(scope="module")
def upstream() -> Iterator[Upstream]:
    with simulated() as running:
        yield running


@pytest.fixture
def command(database_url: str, tmp_path: Path, upstream: Upstream) -> tuple[str, ...]:
    """`run` over three lines, without its `-o`."""
    inputs = requests(tmp_path / "in.jsonl", 3)
    location = ("--database", database_url, "--data-dir", str(tmp_path / "data"))
    return ("run", str(inputs), "--upstream", upstream.url, *location)


def refused(*arguments: str) -> str:
    done = batchline(*arguments)
    assert done.returncode == 2, done.stdout + done.stderr
    return done.stderr


@pytest.mark.parametrize("how", ["itself", "symlink", "hard link"])
@pytest.mark.parametrize("option", ["-o", "--errors"])
def test_the_input_is_never_written_over(
    command: tuple[str, ...], tmp_path: Path, how: str, option: str
) -> None:
    inputs, path = tmp_path / "in.jsonl", tmp_path / "other.jsonl"
    before = inputs.read_bytes()
    match how:
        case "itself":
            path = inputs
        case "symlink":
            path.symlink_to("in.jsonl")
        case _:
            path.hardlink_to(inputs)
    assert "is also the input" in refused(*command, option, str(path))
    assert "is also the input" in refused(*command, option, str(path), "--force")
    assert inputs.read_bytes() == before


@pytest.mark.parametrize("option", ["-o", "--errors"])
def test_a_foreign_file_is_kept_unless_forced(command: tuple[str, ...], tmp_path: Path, option: str) -> None:
    mine, link = tmp_path / "mine.jsonl", tmp_path / "link.jsonl"
    mine.write_text(MINE)
    link.symlink_to(mine)
    for path in (mine, link):
        assert "--force" in refused(*command, option, str(path))
        assert mine.read_text() == MINE
    assert not (tmp_path / "data").exists(), "nothing ran"


def test_a_forced_output_goes_through_the_link_and_is_our_own_from_then_on(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    mine, link = tmp_path / "mine.jsonl", tmp_path / "link.jsonl"
    mine.write_text(MINE)
    mine.chmod(0o600)
    link.symlink_to("mine.jsonl")
    assert batchline(*command, "-o", str(link), "--force").returncode == 0
    assert link.is_symlink()
    assert len(read_lines(mine)) == 3
    assert mine.stat().st_mode & 0o777 == 0o600, "a file keeps its permissions"
    assert batchline(*command, "-o", str(mine)).returncode == 0, "it was Batchline that wrote this"
    mine.write_text(mine.read_text() + "\n")
    assert "--force" in refused(*command, "-o", str(mine)), "it was changed since"


def test_errors_of_an_earlier_run_go_and_a_file_of_yours_does_not(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    mine = tmp_path / "out.errors.jsonl"
    mine.write_text(MINE)
    output = ("-o", str(tmp_path / "out.jsonl"))
    assert "out.errors.jsonl" in refused(*command, *output)
    assert batchline(*command, *output, "--force").returncode == 0
    assert mine.read_text() == MINE, "no line failed, so there was nothing to put in its place"


async def test_a_file_that_appears_while_the_batch_runs_stays(database_url: str, tmp_path: Path) -> None:
    inputs, output = requests(tmp_path / "in.jsonl", 3), tmp_path / "out.jsonl"
    unanswered: list[asyncio.Transport] = []
    # The first two requests only check the upstream and its models. All others wait until the file is there.
    async with upstream_that(answers(200), answers(200), unanswered.append) as slow:
        command = ("run", str(inputs), "--upstream", slow.url, "-o", str(output))
        process = start(*command, "--database", database_url, "--data-dir", str(tmp_path / "data"))
        await eventually("all requests at the upstream", lambda: len(unanswered) == 3)
        output.write_text(MINE)
        for transport in unanswered:
            answers_well(transport)
        _, errors = await asyncio.to_thread(process.communicate, timeout=LIMIT)
    assert process.returncode == 2
    assert "--force" in errors
    assert output.read_text() == MINE
    assert not half_written(tmp_path), "no half of an output is left"


def test_the_output_and_the_errors_are_two_files(command: tuple[str, ...], tmp_path: Path) -> None:
    both = str(tmp_path / "both.jsonl")
    assert "output and errors need two files" in refused(*command, "-o", both, "--errors", both)


@pytest.mark.parametrize("name", ["out.xlsx", "out.tsv", "out.jsonl.bz2", "out.JSON"])
def test_a_name_of_another_format_is_refused(command: tuple[str, ...], tmp_path: Path, name: str) -> None:
    assert "Batchline does not write" in refused(*command, "-o", str(tmp_path / name))
    assert not (tmp_path / name).exists()


# Links and devices of our own: a mistake here must not replace this machine's /dev/stdout.
@pytest.mark.parametrize("name", ["-", "stdout", "link"])
def test_lines_go_to_stdout_and_words_to_stderr(command: tuple[str, ...], tmp_path: Path, name: str) -> None:
    (tmp_path / "stdout").symlink_to("/proc/self/fd/1")
    (tmp_path / "link").symlink_to("stdout")
    name = name if name == "-" else str(tmp_path / name)
    piped = batchline(*command, "-o", name)
    assert piped.returncode == 0, piped.stderr
    assert piped.stdout.count("\n") == piped.stdout.count('"custom_id"') == 3
    assert "3 of 3 completed" in piped.stderr
    with (tmp_path / "redirected").open("wb") as redirected:
        redirected.write(b"before\n")
        redirected.flush()
        subprocess.run([PYTHON, "-m", "batchline", *command, "-o", name], stdout=redirected, check=True)
    assert (tmp_path / "redirected").read_text() == f"before\n{piped.stdout}"
    assert (tmp_path / "stdout").is_symlink()


def test_a_pipe_is_written_through(command: tuple[str, ...], tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()), daemon=True)
    reader.start()
    assert batchline(*command, "-o", str(pipe)).returncode == 0
    reader.join(60)
    assert pipe.is_fifo()
    assert got[0].count(b"\n") == 3


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a device")
def test_a_device_is_written_through(command: tuple[str, ...], tmp_path: Path) -> None:
    null = tmp_path / "null"
    try:
        os.mknod(null, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("root may not make a device here")
    done = batchline(*command, "-o", str(null))
    assert done.returncode == 0, done.stderr
    assert null.is_char_device()


def test_results_keep_to_the_same_rules(command: tuple[str, ...], tmp_path: Path) -> None:
    location = command[4:]
    assert batchline(*command).returncode == 0
    batch = next(
        word for word in batchline("list", *location, "--json").stdout.split('"') if "batch_" in word
    )
    mine = tmp_path / "mine.jsonl"
    mine.write_text(MINE)
    results = ("results", batch, *location, "-o")
    assert "--force" in refused(*results, str(mine))
    assert mine.read_text() == MINE
    assert "Batchline does not write" in refused(*results, str(tmp_path / "x.xlsx"))
    assert batchline(*results, str(mine), "--force").returncode == 0
    assert batchline(*results, str(mine)).returncode == 0
    assert len(read_lines(mine)) == 3
    assert batchline(*results, "-").stdout == mine.read_text()


def test_a_run_killed_while_writing_its_output_continues_without_force(
    database_url: str, tmp_path: Path, upstream: Upstream
) -> None:
    inputs, output = requests(tmp_path / "in.jsonl", 2_000), tmp_path / "out.jsonl"
    location = ("--database", database_url, "--data-dir", str(tmp_path / "data"))
    command = ("run", str(inputs), "--upstream", upstream.url, "-o", str(output), *location)
    for older in (False, True):
        # A run may have written its output before we see it. Then another one is tried.
        caught = False
        while not caught:
            if not older:
                output.unlink(missing_ok=True)
            process = start(*command, "--fresh")
            caught = killed_while_writing(process, tmp_path)
        for left in half_written(tmp_path):
            left.unlink()
        assert batchline(*command).returncode == 0
        assert len(read_lines(output)) == 2_000


def killed_while_writing(process: subprocess.Popen[str], folder: Path) -> bool:
    """Whether there was a half-written output when the process was killed."""

    wait_for("an output", lambda: half_written(folder) or process.poll() is not None, pause=0.001)
    kill(process, signal.SIGKILL)
    return bool(half_written(folder))


def half_written(folder: Path) -> list[Path]:
    return list(folder.glob(".out.jsonl.*"))


def test_whatever_moment_a_writer_is_killed_at_the_file_is_known(tmp_path: Path) -> None:
    written, path = WrittenFiles(tmp_path / "written"), tmp_path / "out.jsonl"
    for content in (b"first", b"second", b"third"):
        written.remember(path, hashlib.sha256(content).hexdigest())
        if path.exists():
            assert written.knows(path), "killed here, the older content is still there"
        path.write_bytes(content)
        assert written.knows(path)
    path.write_bytes(b"mine")
    assert not written.knows(path)
    written.remember(path, hashlib.sha256(b"fourth").hexdigest())
    assert not written.knows(path), "a file that was replaced by force is not known before that is done"
