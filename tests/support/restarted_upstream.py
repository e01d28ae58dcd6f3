"""A simulated upstream that is started again whenever its process ends, as by a supervisor."""

import json
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.ports import free_ports
from tests.support.processes import start
from tests.support.waiting import LIMIT, wait_for


class RestartedUpstream:
    """`ended` counts how often its process has ended by itself."""

    def __init__(self, *options: str) -> None:
        (port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{port}"
        self.ended = 0
        self._options = ("--port", str(port), *options)
        self._stopping = False
        # Cleared while it must stay away.
        self._may_start = threading.Event()
        self._may_start.set()
        self._process = self._start()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def _start(self) -> subprocess.Popen[str]:
        process = start("simulate", "--json", *self._options)
        assert process.stdout is not None
        # Its first line says that it listens.
        process.stdout.readline()
        return process

    def _watch(self) -> None:
        while True:
            self._process.communicate()
            if self._stopping:
                return
            self.ended += 1
            self._may_start.wait()
            self._process = self._start()
            if self._stopping:
                self._process.terminate()

    def kill(self) -> None:
        """End it as a machine that is switched off; it comes back at once."""
        self._process.kill()

    def wait_for_hanging(self) -> None:
        """Until a request hangs, so that work is left whatever happens next. Needs --hang-rate."""
        wait_for("a request that hangs", self._hangs)

    def _hangs(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/stats", timeout=LIMIT) as response:
                stats = json.load(response)
        except OSError:
            return False
        under_way = stats["in_flight"] + stats["waiting"]
        return bool(stats["requests"] > under_way + sum(stats["by_status"].values()))

    @contextmanager
    def away(self, *options: str) -> Iterator[None]:
        """End it as `kill` does, and start it again only when the block is left, with these options."""
        self._may_start.clear()
        self._options = (*self._options[:2], *options)
        self.kill()
        try:
            yield
        finally:
            self._may_start.set()

    def stop(self) -> None:
        self._stopping = True
        self._process.terminate()
        self._thread.join(LIMIT)


@contextmanager
def restarted(*options: str) -> Iterator[RestartedUpstream]:
    upstream = RestartedUpstream(*options)
    try:
        yield upstream
    finally:
        upstream.stop()
