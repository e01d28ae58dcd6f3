"""A mutant: one mistake in one file, and the tests that must notice it."""

from dataclasses import dataclass
from pathlib import Path


class StaleMutant(Exception):
    """The text that a mutant replaces is not in its file exactly once."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """`mistake` says what the change does wrong. The tests are deterministic; one that fails is enough."""

    mistake: str
    file: str
    before: str
    after: str
    tests: tuple[str, ...]

    def apply(self, root: Path) -> None:
        path = root / self.file
        text = path.read_text()
        found = text.count(self.before)
        if found != 1:
            raise StaleMutant(
                f"{self.file}: expected this text once, found it {found} times:\n{self.before}\n"
                f"Correct the mutant {self.mistake!r}."
            )
        path.write_text(text.replace(self.before, self.after))
