"""An upstream that answers as many requests as a test allows, and counts what it was sent."""

import json
import math
import ssl
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.support.waiting import LIMIT


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: "GatedUpstream"

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        answer = {"id": "1", "choices": [{"message": {"content": self.server.taken(self.headers, body)}}]}
        content = json.dumps(answer).encode()
        try:
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
        except OSError:
            # The client was killed meanwhile.
            self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        pass


class GatedUpstream(ThreadingHTTPServer):
    """Answers everything until `allow` sets a limit. An answer repeats the question, so a test sees whose it
    is."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, certificate: Path | None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        if certificate is not None:
            self.url = self.url.replace("http:", "https:")
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate, certificate.with_suffix(".key"))
            # Handshakes in the threads of connections: one that fails ends no other.
            self.socket = context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)
        self._changed = threading.Condition()
        self._allowed: float = math.inf
        # How often each idempotency key, and each question, was sent.
        self.keys: Counter[str] = Counter()
        self.questions: Counter[str] = Counter()

    def taken(self, headers: Any, body: dict[str, Any]) -> str:
        question = str(body["messages"][0]["content"])
        with self._changed:
            self.keys[str(headers["idempotency-key"])] += 1
            self.questions[question] += 1
            number = self.keys.total()
            self._changed.wait_for(lambda: number <= self._allowed, LIMIT)
        return f"You said: {question}"

    def allow(self, requests: float = math.inf) -> None:
        """Answer the first so many requests, counted from the start. The others wait."""
        with self._changed:
            self._allowed = requests
            self._changed.notify_all()


@contextmanager
def gated_upstream(certificate: Path | None = None) -> Iterator[GatedUpstream]:
    """`certificate`: it speaks TLS. The key is beside it."""
    upstream = GatedUpstream(certificate)
    thread = threading.Thread(target=upstream.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield upstream
    finally:
        upstream.allow()
        upstream.shutdown()
        thread.join(LIMIT)
        upstream.server_close()
