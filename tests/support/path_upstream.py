"""An upstream that answers any POST, and notes its path and body, in the order in which they came."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class PathUpstream:
    url: str
    requests: list[tuple[str, dict[str, Any]]] = field(default_factory=list)


@contextmanager
def upstream_of_any_path() -> Iterator[PathUpstream]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.answer({"object": "list", "data": []})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            upstream.requests.append((self.path, body))
            self.answer({"score": len(upstream.requests), "usage": {"total_tokens": 7}})

        def answer(self, document: object) -> None:
            body = json.dumps(document).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            return None

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        upstream = PathUpstream(f"http://127.0.0.1:{server.server_address[1]}/base/v1")
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield upstream
        finally:
            server.shutdown()
            thread.join()
