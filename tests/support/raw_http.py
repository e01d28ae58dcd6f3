"""Bytes sent to a server as they are, and the bytes that come back."""

import socket
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import urlsplit

from tests.support.serving import Server


def spoken(server: Server, sent: bytes | Callable[[socket.socket], None], limit: float = 120.0) -> bytes:
    """All that is answered to these bytes until the server hangs up."""
    location = urlsplit(server.url)
    answer = b""
    with (
        suppress(ConnectionError),
        socket.create_connection((location.hostname or "", location.port or 0), timeout=limit) as connection,
    ):
        if callable(sent):
            sent(connection)
        else:
            connection.sendall(sent)
        while block := connection.recv(65_536):
            answer += block
    return answer
