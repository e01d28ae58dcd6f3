"""Recognizes files that Batchline wrote, so that a folder or a pattern does not send answers as requests.

What counts is what was written, not how a file is named: the files of this command, those with a record, and
those that a manifest beside them describes. A file that has changed since is the user's.
"""

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from batchline.cli.display.units import counted
from batchline.cli.manifest import MANIFEST_SUFFIX, Manifest, ManifestFile
from batchline.cli.targets import OutputTarget
from batchline.cli.written import WrittenFiles

_DISPLAYED = 3


class OwnFiles:
    """Call it with a path. It keeps the paths that it has recognized."""

    def __init__(self, written: WrittenFiles, targets: Iterable[OutputTarget] = ()) -> None:
        self._written = written
        self._targets = {target.path for target in targets}
        # By folder, what the manifests in it describe.
        self._described: dict[Path, dict[str, ManifestFile | None]] = {}
        self.recognized: list[Path] = []

    def __call__(self, path: Path) -> bool:
        real = Path(os.path.realpath(path))
        own = real in self._targets or self._written.knows(real) or self._is_described(real)
        if own:
            self.recognized.append(path)
        return own

    @property
    def note(self) -> str | None:
        """What to tell the user about files that were left out."""
        if not (count := len(self.recognized)):
            return None
        names = ", ".join(map(str, self.recognized[:_DISPLAYED]))
        more = f" and {count - _DISPLAYED} more" if count > _DISPLAYED else ""
        files = counted(count, "file")
        return f"left out {files} that Batchline wrote: {names}{more}; to use one as input, name it"

    def _is_described(self, path: Path) -> bool:
        if path.parent not in self._described:
            self._described[path.parent] = _described_in(path.parent)
        described = self._described[path.parent]
        entry = described.get(path.name)
        return path.name in described if entry is None else _has_digest(path, entry)


def _described_in(folder: Path) -> dict[str, ManifestFile | None]:
    """Files by name. Of a manifest itself, no digest is known."""
    found: dict[str, ManifestFile | None] = {}
    for path in folder.glob(f"*{MANIFEST_SUFFIX}"):
        try:
            manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
        except (OSError, msgspec.DecodeError):
            continue
        found |= {path.name: None, manifest.output.name: manifest.output}
        if manifest.errors is not None:
            found[manifest.errors.name] = manifest.errors
    return found


def _has_digest(path: Path, entry: ManifestFile) -> bool:
    if path.stat().st_size != entry.bytes:
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == entry.sha256
