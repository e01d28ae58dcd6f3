"""An upstream that answers only requests with the right API key: others get 401."""

import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

RIGHT_KEY = "right-key"


@dataclass
class KeyUpstream:
    """How often each prompt was asked, by whether it was answered."""

    url: str
    answered: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)


@contextmanager
def upstream_with_a_key() -> Iterator[KeyUpstream]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.answer(200, {"object": "list", "data": []})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            allowed = self.headers.get("Authorization") == f"Bearer {RIGHT_KEY}"
            with upstream.lock:
                (upstream.answered if allowed else upstream.refused)[body["messages"][0]["content"]] += 1
            if allowed:
                self.answer(200, {"choices": [{"message": {"content": "yes"}}]})
            else:
                self.answer(401, {"error": {"message": "wrong key", "code": "invalid_api_key"}})

        def answer(self, status: int, document: object) -> None:
            body = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            return None

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        upstream = KeyUpstream(f"http://127.0.0.1:{server.server_address[1]}/v1")
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield upstream
        finally:
            server.shutdown()
            thread.join()
