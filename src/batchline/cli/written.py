"""The record of files that Batchline wrote, so that it replaces only its own output.

It is in the data folder, one small file per output path. If a record is lost, `--force` is needed. The record
is written before the output gets its name. So it holds two digests, of the content before and after: if the
process is killed in between, the output is known either way.
"""

import hashlib
import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class WrittenFiles:
    """The record in one data folder. Paths are absolute, without symbolic links."""

    folder: Path

    def knows(self, path: Path) -> bool:
        """Whether Batchline wrote the file at `path` and it is unchanged."""
        return bool(digests := self._digests(path)) and _digest(path) in digests

    def remember(self, path: Path, digest: str) -> None:
        """Record that `path` will have the content with this digest."""
        before = self._digests(path)
        current = [_digest(path)] if before and path.is_file() else []
        kept = [known for known in current if known in before and known != digest]
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=self.folder)
        try:
            with os.fdopen(handle, "w") as stream:
                json.dump({"path": str(path), "sha256": [*kept, digest]}, stream)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(temporary, self._entry(path))
        except BaseException:
            os.unlink(temporary)
            raise

    def _digests(self, path: Path) -> list[str]:
        try:
            entry = json.loads(self._entry(path).read_bytes())
        except (FileNotFoundError, json.JSONDecodeError):
            return []
        return list(entry["sha256"])

    def _entry(self, path: Path) -> Path:
        return self.folder / f"{hashlib.sha256(os.fsencode(path)).hexdigest()}.json"


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
