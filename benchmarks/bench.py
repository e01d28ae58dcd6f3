"""The context of a comparison: a server, a scratch folder, and sizes."""

from dataclasses import dataclass
from pathlib import Path

from benchmarks.server import BenchServer


@dataclass(frozen=True, slots=True)
class Bench:
    server: BenchServer
    scratch: Path
    quick: bool

    def size(self, full: int, *, quick: int) -> int:
        """Choose a size. A quick run only checks that everything runs; its figures mean nothing."""
        return quick if self.quick else full

    @property
    def rounds(self) -> int:
        return self.size(3, quick=1)
