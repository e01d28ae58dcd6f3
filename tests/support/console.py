"""Console blocks of the documentation: what they run, and what they say that it prints.

A page is one session of bash in an empty folder. Comments in the Markdown, which no reader sees, say what
else a page needs. Each is for the next block:

    <!-- file: reviews.csv -->      the block is the content of this file
    <!-- setup: COMMAND -->         is run before the block, and must end with 0
    <!-- server: COMMAND -->        the same, but it stays: what the page needs in the background
    <!-- server -->                 the commands of the block stay: a reader runs them in another terminal
    <!-- numbers vary -->           digits in the block's output are not compared
    <!-- not run: REASON -->        the block is not run

`prompts 20 [MODEL]` prints 20 request lines; `stop` ends the last server. CHECKOUT is the repository.

In the expected output, `…` stands for any text and a line `…` for any lines. Lines that differ from run to
run are left out on both sides: the progress of batches and workers, the start of PostgreSQL, and what bash
says about processes in the background. Ids are not compared.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

_FENCE = re.compile(r"^(?P<indent> *)```(?P<kind>\w*)\s*$")
_DIRECTIVE = re.compile(r"^ *<!-- (?P<kind>file|setup|server|numbers vary|not run)(?:: (?P<value>.+))? -->$")
_VARYING = re.compile(
    r"starting PostgreSQL|creating an embedded PostgreSQL|looking for answers of earlier runs"
    r"|\[\d+\]|bash: line \d+: +\d+ "
    r"|.*: [\d,]+ of [\d,]+ done \(|\d\d:\d\d:\d\d  "
)
_NUMBER = re.compile(r" *\d[\d,.]*")
_ID = re.compile(r"(?<![0-9a-f])[0-9a-f]{32}(?![0-9a-f])")

# `server` waits until the command has printed as many lines as the page shows.
PRELUDE = """
prompts() {
    for number in $(seq 1 $1); do
        echo '{"custom_id": "q-'$number'", "method": "POST", "url": "/v1/chat/completions", "body":' \
            '{"model": "'${2:-my-model}'", "max_tokens": 100,' \
            '"messages": [{"role": "user", "content": "What is '$number' squared?"}]}}'
    done
}
trap 'kill $(jobs -p) 2> /dev/null; wait' EXIT
server() {
    > .server.$1
    bash -c "$2" >> .server.$1 2>&1 &
    server=$!
    until [ $(wc -l < .server.$1) -ge $3 ] || ! kill -0 $server 2> /dev/null; do sleep 0.05; done
    cat .server.$1
    kill -0 $server
}
stop() { kill $server; wait $server; }
"""


@dataclass(frozen=True, slots=True)
class Command:
    """`line` is the line of the page."""

    line: int
    text: str
    expected: tuple[str, ...] = ()
    numbers_vary: bool = False


@dataclass(frozen=True, slots=True)
class Block:
    line: int
    kind: str
    content: tuple[str, ...]
    directives: tuple[tuple[str, str | None], ...] = ()

    def has(self, kind: str) -> bool:
        return any(name == kind for name, _value in self.directives)


@dataclass(slots=True)
class Script:
    """What a page runs, in order."""

    commands: list[Command] = field(default_factory=list)
    not_run: list[str] = field(default_factory=list)


def blocks(page: Path) -> Iterator[Block]:
    """The fenced blocks of a page, with the directives before them."""
    directives: list[tuple[str, str | None]] = []
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
        elif line.startswith("    ") and re.match(r" +(\$ )?(batchline|curl|pip) ", line):
            raise ValueError(f"{page}:{number}: a command outside of a console block")
        elif line.lstrip().startswith("<!-- ") and re.match(r" *<!-- (file|setup|server|not run)", line):
            raise ValueError(f"{page}:{number}: not a directive: {line}")


def script_of(page: Path) -> Script:
    script = Script()
    for block in blocks(page):
        for kind, value in block.directives:
            if value is None and kind not in ("server", "numbers vary"):
                raise ValueError(f"{page}:{block.line}: `{kind}` of this block says nothing")
            if kind == "setup":
                script.commands.append(Command(block.line, value or ""))
            elif kind == "server" and value is not None:
                script.commands.append(_server(Command(block.line, value)))
            elif kind == "file":
                script.commands.append(Command(block.line, _written(value or "", block.content)))
            elif kind == "not run":
                script.not_run.append(f"{page.name}:{block.line}: {value}")
        if block.kind == "console" and not block.has("not run"):
            stays = ("server", None) in block.directives
            script.commands += [_server(each) if stays else each for each in _commands(page, block)]
    return script


def _written(name: str, content: Sequence[str]) -> str:
    return "\n".join([f"cat > {name} <<'END_OF_FILE'", *content, "END_OF_FILE"])


def _server(command: Command) -> Command:
    text = command.text.replace("'", "'\\''")
    count = max(len(command.expected), 1)
    return replace(command, text=f"server {command.line} '{text}' {count}")


def _commands(page: Path, block: Block) -> Iterator[Command]:
    numbers_vary = block.has("numbers vary")
    text: list[str] = []
    expected: list[str] = []
    start, continued = 0, False
    for number, line in enumerate(block.content, block.line + 1):
        if continued:
            text.append(line)
        elif line.startswith("$ "):
            if text:
                yield Command(start, "\n".join(text), tuple(expected), numbers_vary)
            start, text, expected = number, [line.removeprefix("$ ")], []
        elif not text:
            raise ValueError(f"{page}:{number}: output without a command")
        else:
            expected.append(line)
        continued = line.endswith("\\") and not expected
    if text:
        yield Command(start, "\n".join(text), tuple(expected), numbers_vary)


def differs(command: Command, printed: str) -> bool:
    """Whether the output is not what the page shows. A page that shows nothing says nothing about it."""
    wanted, got = _constant(command.expected), _constant(printed.splitlines())
    if command.numbers_vary:
        wanted, got = ([_NUMBER.sub(" N", line) for line in lines] for lines in (wanted, got))
    return bool(wanted) and _pattern(wanted).fullmatch("".join(f"{line}\n" for line in got)) is None


def _constant(lines: Sequence[str]) -> list[str]:
    return [_ID.sub("…", line).rstrip() for line in lines if line.strip() and not _VARYING.match(line)]


def _pattern(lines: Sequence[str]) -> re.Pattern[str]:
    parts: list[str] = []
    for line in lines:
        if line.strip() == "…":
            parts.append(r"(?:.*\n)*?")
        else:
            parts.append(".*?".join(re.escape(part) for part in line.split("…")) + r"\n")
    return re.compile("".join(parts))
