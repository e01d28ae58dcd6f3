"""Upstream that records when the first byte of each request arrives, and answers it."""

import re
import socket
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread
from time import perf_counter
from types import TracebackType
from typing import Self

_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_ANSWER = b'{"object":"chat.completion","choices":[]}'
# An idle worker has no open connection, so each request must use a new one.
_RESPONSE = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b"
    % (len(_ANSWER), _ANSWER)
)


class Doorbell:
    """A server in a separate thread with blocking sockets, so that no event loop delays the measurement."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._rings: SimpleQueue[float] = SimpleQueue()
        self._thread = Thread(target=self._serve, daemon=True)

    @property
    def url(self) -> str:
        host, port = self._socket.getsockname()
        return f"http://{host}:{port}"

    def rung(self) -> float:
        """Wait for the next request, and return perf_counter() at its first byte."""
        return self._rings.get(timeout=60)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Closing alone would not wake the thread.
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                with connection:
                    self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        request = connection.recv(65_536)
        self._rings.put(perf_counter())
        while not _is_whole(request):
            request += connection.recv(65_536)
        connection.sendall(_RESPONSE)


def _is_whole(request: bytes) -> bool:
    head, end, body = request.partition(b"\r\n\r\n")
    length = _LENGTH.search(head)
    return bool(end) and len(body) >= (int(length[1]) if length else 0)
