"""Where inputs come from: files, patterns, folders, pipes and URLs."""

import os
import threading
from pathlib import Path

import pytest

from batchline.files.ingest import InputUnreadable
from batchline.files.inputs import urls
from batchline.files.inputs.errors import InputRefused
from batchline.files.inputs.formats import InputLimits
from batchline.files.inputs.input_set import InputOptions, InputSet, find_inputs
from batchline.files.inputs.rendering import RowTemplate
from batchline.files.inputs.spool import Spool
from tests.support.file_server import SECRET, file_server
from tests.support.input_files import inputs_at

HOW = RowTemplate(model="m")


def rows(inputs: InputSet) -> list[object]:
    return [row for _, row in inputs.rows()]


def test_patterns_and_folders_are_all_their_files_in_order(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    (folder / "sub").mkdir(parents=True)
    for name in ("b.csv", "a.csv", "sub/c.csv", ".hidden.csv", "notes.md"):
        (folder / name).write_text(f"prompt\n{name}\n")
    by_folder = inputs_at(folder, template=HOW)
    assert [file.name for file in by_folder.files] == ["a.csv", "b.csv", "sub/c.csv"]
    by_pattern = inputs_at(f"{folder}/*.csv", template=HOW)
    assert [Path(file.name).name for file in by_pattern.files] == ["a.csv", "b.csv"]
    assert by_pattern.originals == (folder / "a.csv", folder / "b.csv")
    odd = tmp_path / "we[i]rd.csv"
    odd.write_text("prompt\nx\n")
    assert inputs_at(odd, template=HOW).files[0].name == "we[i]rd.csv", "a file wins over the pattern"


def test_what_is_not_there_is_reported(tmp_path: Path) -> None:
    with pytest.raises(InputUnreadable, match=r"missing.csv cannot be read: no such file"):
        inputs_at(tmp_path / "missing.csv")
    with pytest.raises(InputRefused, match="no file matches it"):
        inputs_at(f"{tmp_path}/*.csv")
    with pytest.raises(InputRefused, match="the folder has no file whose name ends in"):
        inputs_at(tmp_path)
    with pytest.raises(InputRefused, match="begins with http://, https:// or s3://"):
        inputs_at("ftp://host/x.csv")


def test_a_pipe_is_copied_and_its_copy_removed(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.csv"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_bytes(b"prompt\nhello\n"))
    writer.start()
    with Spool(lambda: tmp_path / "spool") as spool:
        inputs = inputs_at(pipe, template=HOW, spool=spool)
        assert rows(inputs) == rows(inputs) == [{"prompt": "hello"}]
        assert inputs.originals == ()
    writer.join()
    assert list((tmp_path / "spool").iterdir()) == []


def test_the_copies_of_a_killed_process_are_removed_but_not_those_of_a_running_one(tmp_path: Path) -> None:
    folder = tmp_path / "spool"
    (folder / "killed").mkdir(parents=True)
    for name in ("1", "lock"):
        (folder / "killed" / name).write_text("left")
    with Spool(lambda: folder) as running:
        kept = running.save([b"x"])
        assert not (folder / "killed").exists()
        with Spool(lambda: folder) as other:
            other.save([b"y"])
        assert kept.read_bytes() == b"x"


@pytest.mark.parametrize(
    "path",
    [
        "127.0.0.1:1/whole.csv",
        "127.0.0.1:1/chunked.csv",
        "127.0.0.1:1/moved.csv",
        f"me:{SECRET}@127.0.0.1:1/private.csv",
        f"127.0.0.1:1/signed.csv?signature={SECRET}%2F",
    ],
)
def test_http_is_read_in_all_its_forms(tmp_path: Path, path: str) -> None:
    with file_server() as address, Spool(lambda: tmp_path / "spool") as spool:
        url = f"http://{path.replace('127.0.0.1:1', address)}"
        inputs = inputs_at(url, template=HOW, spool=spool)
        assert rows(inputs) == [{"prompt": "hello"}]
        assert inputs.files[0].name.startswith(f"http://{address}/"), "without credentials"
        assert SECRET not in inputs.files[0].name + inputs.title


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/missing.csv", "the server answered 404"),
        ("/private.csv", "the server answered 401"),
        ("/cut.csv", "cannot be read"),
    ],
)
def test_errors_of_http_are_reported_without_secrets(tmp_path: Path, path: str, message: str) -> None:
    with file_server() as address, Spool(lambda: tmp_path / "spool") as spool:
        with pytest.raises(InputRefused, match=message) as refused:
            inputs_at(f"http://me:x{SECRET}@{address}{path}?key={SECRET}", template=HOW, spool=spool)
        assert SECRET not in str(refused.value)
        assert f"http://{address}{path}" in str(refused.value)


def test_a_server_that_is_not_there_is_reported_without_secrets(tmp_path: Path) -> None:
    with Spool(lambda: tmp_path / "spool") as spool:
        with pytest.raises(InputRefused, match=r"http://127\.0\.0\.1:9/x\.csv: cannot be read") as refused:
            inputs_at(f"http://me:{SECRET}@127.0.0.1:9/x.csv?key={SECRET}", template=HOW, spool=spool)
        assert SECRET not in str(refused.value)


def test_a_download_ends_at_the_limit(tmp_path: Path) -> None:
    with file_server() as address, Spool(lambda: tmp_path / "spool") as spool:
        limits = InputLimits(max_bytes=10)
        with pytest.raises(InputRefused, match="more than 10 bytes; raise --max-input-size"):
            inputs_at(f"http://{address}/whole.csv", template=HOW, spool=spool, limits=limits)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("https://a:b@host:8/p/x.csv?q=1#f", "https://host:8/p/x.csv"),
        ("https://a:b@c@host/x", "https://host/x"),
        ("s3://bucket/x y.csv", "s3://bucket/x y.csv"),
        ("https://host?q=@x/y", "https://host"),
        ("dir/x.csv?no", "dir/x.csv?no"),
    ],
)
def test_a_public_name_has_neither_credentials_nor_query(given: str, name: str) -> None:
    assert urls.public_name(given) == name


def test_outputs_are_left_out_of_folders_and_patterns_by_what_they_are(tmp_path: Path) -> None:
    for name in ("a.csv", "mine.output.csv", "answers.csv"):
        (tmp_path / name).write_text("prompt\nx\n")

    def found(given: object) -> list[str]:
        options = InputOptions(HOW)
        inputs = find_inputs([str(given)], options, Spool(no_folder), lambda path: path.name == "answers.csv")
        return [Path(file.name).name for file in inputs.files]

    assert found(tmp_path) == found(f"{tmp_path}/*.csv") == ["a.csv", "mine.output.csv"]
    assert found(f"{tmp_path}/*.output.csv") == ["mine.output.csv"]
    assert found(tmp_path / "answers.csv") == ["answers.csv"], "a file that is named is used"
    with pytest.raises(InputRefused, match="Batchline wrote all files"):
        found(f"{tmp_path}/answ*.csv")


def no_folder() -> Path:
    raise AssertionError("no copy is needed")


@pytest.mark.parametrize("password", ["pa/ssword", "pa?ssword", "pa#ssword", "p@ss/word"])
def test_a_password_with_any_character_is_not_displayed(tmp_path: Path, password: str) -> None:
    with pytest.raises((InputRefused, InputUnreadable)) as refused:
        inputs_at(f"http://user:{password}@127.0.0.1:9/x.csv", template=HOW, spool=Spool(lambda: tmp_path))
    assert "ssword" not in str(refused.value)
    assert "ss/word" not in str(refused.value)
