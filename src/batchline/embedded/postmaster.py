"""What a running server says of itself, in `postmaster.pid`, and whether it is true.

The file outlives a server that was killed, so it is never believed alone: a server is there when something
listens on its socket. That costs microseconds, needs no permission to look at the process, and cannot be
fooled by a pid that was given to somebody else.
"""

import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import quote


@dataclass(frozen=True)
class Postmaster:
    """The server process of a cluster, as its `postmaster.pid` describes it."""

    pid: int
    port: int
    socket_dir: str
    status: str

    @classmethod
    def read(cls, cluster: Path) -> Self | None:
        try:
            text = os.fsdecode((cluster / "postmaster.pid").read_bytes())
        except FileNotFoundError:
            return None
        # The server writes the file line by line as it starts: what is not there yet is empty.
        pid, _, _, port, socket_dir, _, _, status, *_ = [line.strip() for line in text.split("\n")] + [""] * 8
        # A stand-alone backend (`postgres --single`) notes its pid as a negative number.
        return cls(pid=abs(int(pid or 0)), port=int(port or 0), socket_dir=socket_dir, status=status)

    def is_ready(self) -> bool:
        return self.status == "ready" and self.listens()

    def listens(self) -> bool:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(1)
            try:
                probe.connect(f"{self.socket_dir}/.s.PGSQL.{self.port}")
            except (FileNotFoundError, ConnectionRefusedError):
                return False
            except (BlockingIOError, TimeoutError):
                return True  # The queue of connections is full: somebody owns it.
        return True

    def url(self, database: str) -> str:
        # The port is named because a PGPORT in the environment would choose another socket.
        return f"postgresql://postgres@/{database}?host={quote(self.socket_dir)}&port={self.port}"
