"""Read `postmaster.pid`, and check that its server is alive.

The file outlives a killed server, so the file alone proves nothing: a server is alive if it answers on its
socket. That check takes less than a millisecond, needs no permission to inspect the process, and is not
misled by a pid that another process has now.
"""

import os
import socket
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import quote

DATABASE = "batchline"

# The shortest request of the protocol: whether the server supports TLS. Any reply will do, and none is
# logged.
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
        # The server writes the file line by line as it starts; treat missing lines as empty.
        pid, _, _, port, socket_dir, _, _, status, *_ = [line.strip() for line in text.split("\n")] + [""] * 8
        # A stand-alone backend (`postgres --single`) writes its pid as a negative number.
        return cls(pid=abs(int(pid or 0)), port=int(port or 0), socket_dir=socket_dir, status=status)

    @property
    def socket(self) -> Path:
        return Path(self.socket_dir, f".s.PGSQL.{self.port}")

    def answers(self) -> bool:
        """Whether the server replies.

        Connecting is not enough: the kernel also accepts for a dying server.
        """
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(_PATIENCE_SECONDS)
            try:
                probe.connect(str(self.socket))
                probe.sendall(_SSL_REQUEST)
                return probe.recv(1) != b""
            except (FileNotFoundError, ConnectionError):
                return False
            except (BlockingIOError, TimeoutError):
                return True  # The server is too busy to reply, or its queue is full.

    @property
    def url(self) -> str:
        # Without the port, PGPORT in the environment would select another socket.
        return f"postgresql://postgres@/{DATABASE}?host={quote(self.socket_dir)}&port={self.port}"
