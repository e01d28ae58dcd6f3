"""What every comparison is given: a server, a scratch folder, and how large things should be."""

from dataclasses import dataclass
from pathlib import Path

from benchmarks.server import Server


@dataclass(frozen=True, slots=True)
class Bench:
    server: Server
    scratch: Path
    quick: bool

    def size(self, full: int, *, quick: int) -> int:
        """`quick` only shows that everything runs; its figures mean nothing."""
        return quick if self.quick else full

    @property
    def rounds(self) -> int:
        return self.size(3, quick=1)
