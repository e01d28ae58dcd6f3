"""A receiver of webhooks: a real HTTP server in a thread, which keeps all that it is told."""

import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.support.waiting import wait_for


@dataclass(frozen=True, slots=True)
class Received:
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def event(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)
        return found


Answer = Callable[[Received], tuple[int, dict[str, str]]]


def accept(received: Received) -> tuple[int, dict[str, str]]:
    return 200, {}


@dataclass(slots=True)
class Receiver:
    url: str
    port: int
    answer: Answer = accept
    received: list[Received] = field(default_factory=list)

    def wait_for(self, count: int) -> list[Received]:
        wait_for(f"{count} messages at the receiver", lambda: len(self.received) >= count)
        return self.received


@contextmanager
def receiving(answer: Answer = accept, *, certificate: Path | None = None) -> Iterator[Receiver]:
    """With a certificate and its key in one file, it speaks https."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            got = Received(self.path, headers, content)
            receiver.received.append(got)
            status, more = receiver.answer(got)
            try:
                self.send_response(status)
                for name, value in more.items():
                    self.send_header(name, value)
                self.send_header("content-length", "0")
                self.end_headers()
            except (BrokenPipeError, ConnectionResetError):
                pass  # The sender did not wait.

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    if certificate is not None:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(certificate)
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    port = server.server_address[1]
    receiver = Receiver(f"http://127.0.0.1:{port}/hook", port, answer)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
