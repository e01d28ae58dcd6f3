"""Console blocks of a page are found, and their output is compared."""

from pathlib import Path

import pytest

from tests.support.console import Command, differs, script_of


def page(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "page.md"
    path.write_text(text)
    return path


def test_commands_have_the_output_that_follows_them(tmp_path: Path) -> None:
    script = script_of(page(tmp_path, "```console\n$ echo a \\\n  b\na b\n$ true\n```\n"))
    assert script.commands == [Command(2, "echo a \\\n  b", ("a b",)), Command(5, "true")]


def test_files_and_setup_come_before_their_block(tmp_path: Path) -> None:
    text = "<!-- setup: first -->\n<!-- file: x -->\n```json\n{}\n```\n```console\n$ last\n```\n"
    commands = [each.text for each in script_of(page(tmp_path, text)).commands]
    assert commands == ["first", "cat > x <<'END_OF_FILE'\n{}\nEND_OF_FILE", "last"]


@pytest.mark.parametrize(
    "text",
    [
        "<!-- not run -->\n```console\n$ a\n```\n",
        "<!-- not run : because -->\n```console\n$ a\n```\n",
        "```console\noutput\n```\n",
        "Run this:\n\n    batchline list\n",
    ],
)
def test_a_block_that_cannot_be_checked_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ValueError, match=r"page\.md:\d"):
        script_of(page(tmp_path, text))


def test_a_block_with_a_reason_is_not_run(tmp_path: Path) -> None:
    script = script_of(page(tmp_path, "<!-- not run: needs a person -->\n```console\n$ a\n```\n"))
    assert script.commands == []
    assert script.not_run == ["page.md:2: needs a person"]


@pytest.mark.parametrize(
    ("expected", "printed", "different"),
    [
        (("one", "two"), "one\ntwo\n", False),
        (("one", "two"), "one\n", True),
        (("one",), "one\ntwo\n", True),
        (("one", "…"), "one\ntwo\n", False),
        (("one", "…"), "one", False),
        (("one …",), "one two", False),
        (("one …",), "two", True),
        ((f"batch_{'a' * 32} ended",), f"batch_{'b' * 32} ended", False),
        (("done",), "in.jsonl: 1 of 2 done (50.0 %)  9/s\ndone", False),
        (("1 done",), "2 done", True),
        ((), "anything", False),
    ],
)
def test_the_output_is_compared(expected: tuple[str, ...], printed: str, different: bool) -> None:
    assert differs(Command(1, "", expected), printed) is different


def test_numbers_that_vary_are_not_compared() -> None:
    command = Command(1, "", ("$0.25 for   17 lines",), numbers_vary=True)
    assert not differs(command, "$1,000.1 for 3 lines")
    assert differs(command, "$1 for 3 rows")
