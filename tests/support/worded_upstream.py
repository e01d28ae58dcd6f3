"""An upstream that a test scripts by words: it holds a request back, or refuses it, if the word is in it."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.support.waiting import LIMIT

_USAGE = {"prompt_tokens": 12, "completion_tokens": 34, "total_tokens": 46}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: "WordedUpstream"

    def do_POST(self) -> None:
        text = self.rfile.read(int(self.headers["content-length"])).decode()
        status, document = self.server.answer(self.path, text)
        content = json.dumps(document).encode()
        try:
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
        except OSError:
            # The client was stopped meanwhile.
            self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        pass


class WordedUpstream(ThreadingHTTPServer):
    """Repeats the question, unless a word in the path or in the body says otherwise."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self._changed = threading.Condition()
        self._held: set[str] = set()
        self._refused: dict[str, tuple[int, str]] = {}
        # Paths and bodies, in the order in which they came.
        self.received: list[str] = []

    def hold(self, word: str) -> None:
        """Answer no request with this word before `release`."""
        with self._changed:
            self._held.add(word)

    def release(self, word: str) -> None:
        with self._changed:
            self._held.discard(word)
            self._changed.notify_all()

    def refuse(self, word: str, status: int, message: str) -> None:
        """Answer requests with this word so, until `accept`."""
        with self._changed:
            self._refused[word] = (status, message)

    def accept(self, word: str) -> None:
        with self._changed:
            del self._refused[word]

    def forget(self) -> None:
        """Answer everything from now on."""
        with self._changed:
            self._held.clear()
            self._refused.clear()
            self._changed.notify_all()

    def count(self, word: str) -> int:
        """How many requests with this word have come."""
        with self._changed:
            return sum(word in each for each in self.received)

    def answer(self, path: str, text: str) -> tuple[int, Any]:
        request = f"{path} {text}"
        with self._changed:
            self.received.append(request)
            self._changed.wait_for(lambda: not any(word in request for word in self._held))
            refused = next((said for word, said in self._refused.items() if word in request), None)
        if refused is not None:
            return refused[0], {"error": {"message": refused[1], "type": "invalid_request_error"}}
        body = json.loads(text)
        if "messages" not in body:
            return 200, {"done": True}
        content = f"You said: {body['messages'][0]['content']}"
        return 200, {
            "id": "chatcmpl-1",
            "model": body.get("model"),
            "choices": [{"index": 0, "message": {"role": "assistant", "content": content}}],
            "usage": _USAGE,
        }


@contextmanager
def worded_upstream() -> Iterator[WordedUpstream]:
    upstream = WordedUpstream()
    thread = threading.Thread(target=upstream.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield upstream
    finally:
        upstream.forget()
        upstream.shutdown()
        thread.join(LIMIT)
        upstream.server_close()
