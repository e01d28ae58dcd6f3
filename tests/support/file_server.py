"""A real HTTP server with one small CSV file, in all the ways that servers have."""

import base64
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SECRET = "s3cr3t"
CONTENT = b"prompt\nhello\n"


class FileHandler(BaseHTTPRequestHandler):
    """Serves the file; its path decides how."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        content = CONTENT
        if path == "/moved.csv":
            self.send_response(302)
            self.send_header("location", "/whole.csv")
            content = b""
        elif path == "/private.csv" and self.headers.get("authorization") != _basic("me", SECRET):
            self.send_response(401)
        elif path == "/missing.csv":
            self.send_response(404)
        elif path == "/signed.csv" and self.path != f"/signed.csv?signature={SECRET}%2F":
            self.send_response(403)
        else:
            self.send_response(200)
        self.send_header("connection", "close")
        if path == "/chunked.csv":
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            self.wfile.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(content), content))
            return
        missing = 5 if path == "/cut.csv" else 0
        self.send_header("content-length", str(len(content) + missing))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        pass


class FileServer(ThreadingHTTPServer):
    # Closing the server waits for the threads, so that no socket is left open.
    daemon_threads = False


def _basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


@contextmanager
def file_server() -> Iterator[str]:
    with FileServer(("127.0.0.1", 0), FileHandler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
