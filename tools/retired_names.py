"""Find names that this project no longer uses.

    python -m tools.retired_names [FOLDER]

There are two kinds. Unambiguous names are errors wherever they appear: in code, comments, docs and file
names. Ordinary English words are errors only as names: Python identifiers, identifiers in SQL files, aliases
and parameters of SQL in Python strings, names of modules and SQL files. Names of test functions and test
modules are sentences: ordinary words are fine.
"""

import io
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]

# Where to look, relative to the root.
SEARCHED = (
    "src",
    "tests",
    "chaos",
    "benchmarks",
    "examples",
    "tools",
    "docs",
    "mutants",
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "Makefile",
    "pyproject.toml",
    ".ci",
    ".github",
)
SUFFIXES = {".py", ".sql", ".md", ".sh", ".toml", ".mako", ".yml", ""}

# History and generated pages keep the words of their time. This program and its test contain the names.
EXEMPT = (
    "docs/decisions/0011",
    "docs/decisions/0012",
    "docs/decisions/README.md",
    "docs/benchmarks",
    "docs/chaos",
    "src/batchline/store/migrations/versions/",
    "tools/retired_names.py",
    "tests/system/test_retired_names.py",
)

# Errors wherever they appear, as regular expressions.
ANYWHERE = {
    r"(?i)attendants?\b": "poller",
    r"(?i)switchboard": "notification router",
    r"(?i)messengers?\b": "outbox",
    r"bury_the_dead|(?<![a-z])kin(?![a-z])|Kin(?![a-z])": "expire_dead_local_workers, local workers",
    r"(?i)(?<![a-z])crews?(?![a-z])": "producer",
    r"lost_track": "reconcile",
    r"send_home": "cancel_all",
    r"besides_below": "excluded_below",
    r"\bHorizon\b": "PollResult",
    r"\bMadeBefore\b": "IdempotencyConflict",
    r"\bNotThere\b": "NotFound",
    r"\bWrongState\b": "Conflict",
    r"\bPlacing\b": "BatchCreation",
    r"(?i)hand[ _-]?overs?(?![a-z])": "(deleted)",
    # A PostgreSQL replica is a standby; a worker never stands by.
    r"(?i)(?<![a-z])(stand(s|ing)?|stood)[ _-]by(?![a-z])": "idle (a PostgreSQL replica is a standby)",
}

# Errors as a name or as a word of a name.
NAMES = {
    "acting": "dependencies",
    "asked": "requested",
    "attend": "run_due, poll",
    "besides": "excluded",
    "duties": "maintenance",
    "duty": "maintenance",
    "failing": "errors, failures",
    "governing": "ops_context",
    "hope": "work_available",
    "hungry": "needs_refill",
    "hurried": "flush",
    "hurry": "flush",
    "least": "min",
    "most": "max",
    "place": "runtime, location, slot",
    "places": "runtimes, locations, slots",
    "sated": "full",
    "shown": "displayed",
    "stray": "reconciler, unknown",
    "strays": "reconciler, unknown",
    "there": "reload, existing",
    "ticket": "IdempotencyKey",
    "told": "reported, notified",
    "turn": "claim_lock, acquire",
}
# Names of Python itself, and the bars of the benchmarks, named like the text that they print.
ALLOWED = {"most_common", "at_least", "at_most"}
# Names that are retired for modules only.
MODULES = {"orders": "creation", "posts": "producers"}
# Whole names, not words of a name.
WHOLE = {"Post": "ProducerScope", "Posts": "ProducerScope", "POSTS": "ProducerScope"}
# Parts of a name that are several words.
PARTS = {r"(?:^|_)(?:give|gives|gave|giving)_up(?:_|$)": "abandon"}

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
# Identifiers that SQL in a Python string introduces: an alias, a common table expression, a parameter.
_SQL_NAME = re.compile(
    r"\bAS\s+([a-z_]\w*)|\b([a-z_]\w*)\s+AS\s*(?:NOT\s+)?(?:MATERIALIZED\s*)?\(|%\((\w+)\)[sbt]"
)
# Every identifier of a SQL file; least() is a function of SQL.
_SQL_WORD = re.compile(r"(?!least\s*\()(?<!\w)[a-z_]\w*", re.IGNORECASE)
_QUOTES = re.compile(r"[a-zA-Z]*(\"\"\"|\'\'\'|\"|\')")
_SQL_ASIDE = re.compile(r"--[^\n]*|'[^']*'")


@dataclass(frozen=True)
class RetiredName:
    """A retired name, where it is, and what to write instead."""

    path: str
    line: int
    name: str
    use: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.name!r} is retired; use {self.use}"


def findings(root: Path) -> Iterator[RetiredName]:
    """Find all retired names below the root, in the order of files and lines."""
    for path in _files(root):
        relative = path.relative_to(root).as_posix()
        if not any(Path(relative).match(f"{exempt}*") or relative.startswith(exempt) for exempt in EXEMPT):
            yield from in_file(relative, path.read_text())


def in_file(path: str, text: str) -> Iterator[RetiredName]:
    """Find retired names in one file, including its path. The path determines the language."""
    found = [*_in_path(path), *_anywhere(path, text)]
    if path.endswith(".py"):
        found += _in_python(path, text)
    elif path.endswith(".sql"):
        found += _in_sql(path, text)
    yield from sorted(found, key=lambda finding: finding.line)


def _files(root: Path) -> Iterator[Path]:
    for name in SEARCHED:
        searched = root / name
        below = sorted(searched.rglob("*")) if searched.is_dir() else [searched]
        yield from (path for path in below if path.suffix in SUFFIXES and path.is_file())


def _in_path(path: str) -> Iterator[RetiredName]:
    for pattern, use in ANYWHERE.items():
        if found := re.search(pattern, path):
            yield RetiredName(path, 1, found[0], use)
    stem = Path(path).stem
    if path.endswith((".py", ".sql")) and not stem.startswith("test_"):
        yield from _retired(path, 1, stem)
        if stem in MODULES and path.startswith("src/"):
            yield RetiredName(path, 1, stem, MODULES[stem])


def _anywhere(path: str, text: str) -> Iterator[RetiredName]:
    for number, line in enumerate(text.splitlines(), 1):
        for pattern, use in ANYWHERE.items():
            for found in re.finditer(pattern, line):
                yield RetiredName(path, number, found[0], use)


def _in_python(path: str, text: str) -> Iterator[RetiredName]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.NAME:
            if not token.string.startswith("test_"):
                yield from _retired(path, token.start[0], token.string)
        elif token.type == tokenize.STRING or tokenize.tok_name[token.type] == "FSTRING_MIDDLE":
            for line, name in _sql_names(_unquoted(token.string), _SQL_NAME):
                yield from _retired(path, token.start[0] + line, name)


def _in_sql(path: str, text: str) -> Iterator[RetiredName]:
    for line, name in _sql_names(text, _SQL_WORD):
        yield from _retired(path, 1 + line, name)


def _unquoted(literal: str) -> str:
    """The content of a Python string, or of the middle of an f-string, which has no quotes."""
    opened = _QUOTES.match(literal)
    return literal[opened.end() : -len(opened[1])] if opened else literal


def _sql_names(text: str, name: re.Pattern[str]) -> Iterator[tuple[int, str]]:
    plain = _SQL_ASIDE.sub(lambda aside: " " * len(aside[0]), text)
    for found in name.finditer(plain):
        yield plain.count("\n", 0, found.start()), next(filter(None, found.groups()), found[0])


def _retired(path: str, line: int, name: str) -> Iterator[RetiredName]:
    if name in WHOLE:
        yield RetiredName(path, line, name, WHOLE[name])
    if name in ALLOWED:
        return
    for part, instead in PARTS.items():
        if re.search(part, name):
            yield RetiredName(path, line, name, instead)
    for word in _WORD.findall(name):
        if use := NAMES.get(word.lower()):
            yield RetiredName(path, line, name, use)


def main(arguments: Iterable[str]) -> int:
    """Print the findings. The exit code is 1 if there are any."""
    root = next(iter(arguments), None)
    found = list(findings(Path(root) if root else ROOT))
    for finding in found:
        print(finding)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
