"""What a running server says of itself, in `postmaster.pid`, and whether it is true.

The file outlives a server that was killed, so it is never believed alone: a server is there if it answers on
its socket. To ask takes under a millisecond, needs no permission to look at the process, and cannot be fooled
by a pid that was given to somebody else.
"""

import os
import socket
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import quote

DATABASE = "batchline"

# The shortest question of the protocol: "do you speak TLS?" Any reply will do, and none is logged.
_SSL_REQUEST = struct.pack("!ii", 8, 80877103)
_PATIENCE_SECONDS = 1


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

    @property
    def socket(self) -> Path:
        return Path(self.socket_dir, f".s.PGSQL.{self.port}")

    def answers(self) -> bool:
        """Whether the server replies; to get in is not enough, for the kernel opens for a dying one too."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(_PATIENCE_SECONDS)
            try:
                probe.connect(str(self.socket))
                probe.sendall(_SSL_REQUEST)
                return probe.recv(1) != b""
            except (FileNotFoundError, ConnectionError):
                return False
            except (BlockingIOError, TimeoutError):
                return True  # Too busy to reply, or its queue is full: somebody is there.

    @property
    def url(self) -> str:
        # The port is named because a PGPORT in the environment would choose another socket.
        return f"postgresql://postgres@/{DATABASE}?host={quote(self.socket_dir)}&port={self.port}"
