"""The process that reads and renders inputs: what it returns, and how it ends."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from msgspec.structs import replace

from batchline.files.ingest import FileRefused, ingest
from batchline.files.inputs import process
from batchline.files.inputs.errors import InputRefused
from batchline.files.inputs.formats import InputLimits
from batchline.files.inputs.input_set import InputSet
from batchline.files.inputs.rendering import RowTemplate
from batchline.model import DEFAULT_TENANT
from tests.support.input_files import FORMATS, ROWS, TRANSLATE, encoded, inputs_at, rendered_lines
from tests.support.processes import write_requests
from tests.support.repository import ROOT
from tests.support.waiting import eventually, wait_for

LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


@pytest.mark.parametrize("suffix", [*FORMATS, "csv.gz", "jsonl.zst"])
def test_every_format_becomes_the_same_requests(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"x.{suffix}"
    path.write_bytes(encoded(suffix))
    assert rendered_lines(inputs_at(path, template=TRANSLATE)) == [
        {
            "custom_id": row["id"],
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {
                "model": "m",
                "messages": [{"role": "user", "content": f"To {row['language']}: {row['text']}"}],
            },
        }
        for row in ROWS
    ]


def test_rows_of_several_files_and_requests_are_numbered_throughout(tmp_path: Path) -> None:
    requests = write_requests(tmp_path / "q.jsonl", 2)
    requests.write_bytes(requests.read_bytes().rstrip())
    text, table = tmp_path / "x.txt", tmp_path / "x.csv"
    text.write_text("one\n\ntwo\n")
    table.write_bytes(b"prompt\nthree\n")
    inputs = inputs_at(text, requests, table, template=RowTemplate(model="m"))
    ids = [line["custom_id"] for line in rendered_lines(inputs)]
    assert ids == ["row-1", "row-3", "q-0", "q-1", "row-6"]
    assert [number for number, _ in inputs.rows()] == [1, 3, 4, 5, 6]


@pytest.mark.parametrize(
    "prompt", [LOOPS, "{{ (n | int) ** (9 ** 9) }}"], ids=["a loop in Python", "one long computation"]
)
def test_a_template_that_does_not_end_is_ended_and_names_the_row(tmp_path: Path, prompt: str) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes(b"n\n1\n2\n3\n")
    template = RowTemplate(model="m", prompt="{% if n == '2' %}" + prompt + "{% endif %}")
    inputs = inputs_at(path, template=template, limits=InputLimits(render_seconds=0.3))
    with pytest.raises(InputRefused, match=r"x.csv, row 2: the template does not end within 0.3 s"):
        rendered_lines(inputs)


def test_a_template_that_does_not_end_while_it_is_compiled_is_ended(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes(b"n\n1\n")
    template = RowTemplate(model="m", prompt="{{ 9 ** (9 ** 9) }}")
    inputs = inputs_at(path, template=template, limits=InputLimits(render_seconds=0.3))
    with pytest.raises(InputRefused, match=r"x.csv: the template does not compile within 0.3 s"):
        rendered_lines(inputs)


def test_a_template_that_wants_all_memory_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes(b"n\n1\n")
    for greedy in ("{{ 'x' * 10 ** 11 }}", "{{ [0] * 10 ** 11 }}"):
        template = RowTemplate(model="m", prompt=greedy)
        with pytest.raises(InputRefused, match=r"row 1: --prompt needs more than 1,073,741,824 bytes"):
            rendered_lines(inputs_at(path, template=template))


def test_a_killed_process_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes(b"n\n1\n")
    inputs = inputs_at(path, template=RowTemplate(model="m", prompt=LOOPS))

    async def killed() -> None:
        async with process.rendered(inputs.files, inputs.template, inputs.limits) as running:
            lines = running.lines(inputs.files[0])
            reading = asyncio.ensure_future(anext(lines))
            psutil.Process(running.process_id).kill()
            with pytest.raises(InputRefused, match=r"ended unexpectedly.*\(exit code -9\)"):
                await reading
            await lines.aclose()

    asyncio.run(killed())


def test_the_process_ends_with_its_parent(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes(b"n\n1\n")
    script = (
        "import asyncio, sys\n"
        "from tests.support.input_files import inputs_at\n"
        "from batchline.files.inputs import process\n"
        "from batchline.files.inputs.rendering import RowTemplate\n"
        f"inputs = inputs_at({str(path)!r}, template=RowTemplate(model='m', prompt={LOOPS!r}))\n"
        "async def main():\n"
        "    async with process.rendered(inputs.files, inputs.template, inputs.limits) as running:\n"
        "        print(running.process_id, flush=True)\n"
        "        await asyncio.sleep(3600)\n"
        "asyncio.run(main())\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, cwd=ROOT) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.kill()
    wait_for("the child to end", lambda: not _runs(child))


def test_the_process_ends_without_a_word_if_its_last_lines_are_read_late(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes(b"n\n1\n")
    inputs = inputs_at(path, template=RowTemplate(model="m", prompt="{{n}}"))

    async def ended() -> None:
        async with process.rendered(inputs.files, inputs.template, inputs.limits) as running:
            assert [block async for block in running.lines(inputs.files[0])]
            child = psutil.Process(running.process_id)
            await eventually("the child to end", lambda: child.status() == psutil.STATUS_ZOMBIE)

    asyncio.run(ended())
    assert capfd.readouterr().err == ""


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def _ingested(url: str, inputs: InputSet) -> Any:
    async with inputs.sources() as sources:
        return await ingest(
            url,
            sources,
            tenant=DEFAULT_TENANT,
            filename="x",
            known=await asyncio.to_thread(inputs.fingerprint),
        )


async def test_errors_of_the_ingest_name_the_row(database_url: str, tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes(b'id,prompt\na,"x\ny"\nb,y\na,z\n')
    inputs = inputs_at(path, template=RowTemplate(model="m", id_column="id"))
    with pytest.raises(FileRefused, match=r"x.csv, row 3: custom_id 'a' is already used on row 1"):
        await _ingested(database_url, inputs)


async def test_a_file_that_changes_while_it_is_read_is_refused(database_url: str, tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes(b"prompt\na\n")
    inputs = inputs_at(path, template=RowTemplate(model="m"))
    known = inputs.fingerprint()
    path.write_bytes(b"prompt\na\nb\n")
    with pytest.raises(Exception, match=r"x.csv cannot be read: it changed while it was read"):
        async with inputs.sources() as sources:
            await ingest(database_url, sources, tenant=DEFAULT_TENANT, filename="x", known=known)


def test_all_that_decides_the_requests_is_in_the_fingerprint(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes(b"id,prompt\na,b\n")
    template = RowTemplate(model="m", prompt="{{ prompt }}", system="s", params={"n": 1}, id_column="id")
    changes: list[dict[str, Any]] = [
        {},
        {"model": "n"},
        {"prompt": "{{prompt}}"},
        {"system": "t"},
        {"params": {"n": 2}},
        {"endpoint": "/v1/responses"},
        {"id_column": None},
        {"prompt": None, "system": None, "params": {}, "body": "{}"},
    ]
    digests = [
        inputs_at(path, template=replace(template, **change)).fingerprint().digest for change in changes
    ]
    digests.append(inputs_at(path, template=template, delimiter=";").fingerprint().digest)
    assert len(set(digests)) == len(changes) + 1
    assert inputs_at(path, template=template).fingerprint().digest == digests[0]


@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="reads /proc")
@pytest.mark.parametrize("suffix", ["csv", "csv.gz", "jsonl.zst", "parquet", "arrow"])
def test_memory_does_not_grow_with_the_input(tmp_path: Path, suffix: str) -> None:
    peaks = []
    for rows in (20_000, 60_000):
        path = tmp_path / f"{rows}.{suffix}"
        path.write_bytes(
            encoded(suffix, [{"id": str(n), "language": "x", "text": f"{n} " * 170} for n in range(rows)])
        )
        command = [sys.executable, "-m", "tests.support.input_memory", str(path)]
        peaks.append(int(subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout))
    small, large = peaks
    assert large - small < 20_000_000, "the larger file has 40 MB more"
