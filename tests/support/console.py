"""Console blocks of the documentation: what they run, and what they say that it prints.

A page is one session of bash in an empty folder. Comments in the Markdown, which no reader sees, say what
else a page needs:

    <!-- file: reviews.csv -->      the next block is written to this file
    <!-- setup: COMMAND -->         run before the next block, unchecked
    <!-- not run: REASON -->        the next block is not run

In the expected output, `…` stands for any text and a line `…` for any lines. Lines that differ from run to
run are left out on both sides: the progress of batches, and the start of PostgreSQL.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_FENCE = re.compile(r"^(?P<indent> *)```(?P<kind>\w*)\s*$")
_DIRECTIVE = re.compile(r"^ *<!-- (?P<kind>file|setup|not run): (?P<value>.+) -->$")
_VARYING = re.compile(
    r"(starting PostgreSQL|looking for answers of earlier runs|\[\d+\]|.*: [\d,]+ of [\d,]+ done \()"
)
_ID = re.compile(r"(batch_|batch_req_)[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class Command:
    """`line` is the line of the page."""

    line: int
    text: str
    expected: tuple[str, ...] = ()
    # Neither its output nor its exit code matters.
    checked: bool = True


@dataclass(frozen=True, slots=True)
class Block:
    line: int
    kind: str
    content: tuple[str, ...]
    directives: tuple[tuple[str, str], ...] = ()

    def directive(self, kind: str) -> str | None:
        return next((value for name, value in self.directives if name == kind), None)


@dataclass(slots=True)
class Script:
    """What a page runs, in order."""

    commands: list[Command] = field(default_factory=list)
    not_run: list[tuple[int, str]] = field(default_factory=list)


def blocks(page: Path) -> Iterator[Block]:
    """The fenced blocks of a page, with the directives before them."""
    directives: list[tuple[str, str]] = []
    fence: re.Match[str] | None = None
    content: list[str] = []
    start = 0
    for number, line in enumerate(page.read_text().splitlines(), 1):
        found = _FENCE.match(line)
        if fence is None and found is not None:
            fence, content, start = found, [], number
        elif fence is not None and found is not None:
            yield Block(start, fence["kind"], tuple(content), tuple(directives))
            fence, directives = None, []
        elif fence is not None:
            content.append(line.removeprefix(fence["indent"]))
        elif (said := _DIRECTIVE.match(line)) is not None:
            directives.append((said["kind"], said["value"]))


def script_of(page: Path) -> Script:
    script = Script()
    for block in blocks(page):
        if (reason := block.directive("not run")) is not None:
            script.not_run.append((block.line, reason))
            continue
        for kind, value in block.directives:
            if kind == "setup":
                script.commands.append(Command(block.line, value, checked=False))
        if (name := block.directive("file")) is not None:
            script.commands.append(Command(block.line, _written(name, block.content), checked=False))
        elif block.kind == "console":
            script.commands += _commands(block)
    return script


def _written(name: str, content: Sequence[str]) -> str:
    return "\n".join([f"cat > {name} <<'END_OF_FILE'", *content, "END_OF_FILE"])


def _commands(block: Block) -> Iterator[Command]:
    text: list[str] = []
    expected: list[str] = []
    start, continued = 0, False
    for number, line in enumerate(block.content, block.line + 1):
        if continued:
            text.append(line)
        elif line.startswith("$ "):
            if text:
                yield Command(start, "\n".join(text), tuple(expected))
            start, text, expected = number, [line.removeprefix("$ ")], []
        else:
            expected.append(line)
        continued = bool(text) and line.endswith("\\") and not expected
    if text:
        yield Command(start, "\n".join(text), tuple(expected))


def differs(expected: Sequence[str], printed: str) -> bool:
    """Whether the output is not what the page shows. A page that shows nothing says nothing about it."""
    wanted = _constant(expected)
    return bool(wanted) and _pattern(wanted).fullmatch("\n".join(_constant(printed.splitlines()))) is None


def _constant(lines: Sequence[str]) -> list[str]:
    return [_ID.sub(r"\1…", line).rstrip() for line in lines if line.strip() and not _VARYING.match(line)]


def _pattern(lines: Sequence[str]) -> re.Pattern[str]:
    parts: list[str] = []
    for line in lines:
        if line.strip() == "…":
            parts.append(r"(?:.*\n)*?")
        else:
            parts.append(".*?".join(re.escape(part) for part in line.split("…")) + r"\n")
    text = "".join(parts)
    # The last line may have no end.
    return re.compile(text.removesuffix(r"\n") + r"\n?")
