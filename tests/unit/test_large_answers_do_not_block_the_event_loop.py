"""Whatever an upstream answers, a worker's event loop is never busy with it for long."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from batchline.model import Completed, Failed, Retried, Verdict
from batchline.upstreams.memory import MIB
from tests.support.event_loops import Slowest, slowest_callback
from tests.support.http_executor import KEY, an_executor, an_item
from tests.support.scripted_upstream import http


def said(what: bytes, size: int) -> bytes:
    return b'{"said":"%b"}' % (what * (size // len(what)))


BODIES = {
    "40 MiB of ASCII": (said(b"x", 40 * MIB), Completed),
    "60 MiB of UTF-8": (said("é".encode(), 60 * MIB), Completed),
    "40 MiB with line feeds": (said(b"x", 40 * MIB).replace(b":", b":\n", 1), Completed),
    "40 MiB full of the API key": (said(KEY.encode(), 40 * MIB), Completed),
    "900 KiB of lone surrogates": (said(rb"\ud800", 900 * 1024), Completed),
    "7 MiB of lone surrogates": (said(rb"\ud800", 7 * MIB), Retried),
    "7 MiB of escapes, not JSON": (said(rb"\n", 7 * MIB)[:-1], Retried),
    "60 KiB of escapes, not JSON": (said(rb"\n", 60 * 1024)[:-1], Retried),
}


@contextmanager
def upstream_in_a_thread(message: bytes) -> Iterator[str]:
    """Answers one request. It has no event loop, because the loop's time is what is measured."""

    def serve() -> None:
        with suppress(OSError):
            connection, _ = listening.accept()
            with connection:
                connection.recv(65_536)
                connection.sendall(message)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(65_536):
                    pass

    with socket.create_server(("127.0.0.1", 0)) as listening:
        serving = threading.Thread(target=serve)
        serving.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    serving.join()


async def judged(status: int, body: bytes) -> tuple[Verdict, Slowest]:
    with upstream_in_a_thread(http(status, body, b"Connection: close")) as url:
        async with an_executor(environ={"KEY": KEY}) as executor:
            item = an_item(url, api_key_env="KEY")
            # The first client of a process reads the certificates of the machine.
            executor.upstreams.get(url).route(item.claim.url, "KEY")
            with slowest_callback() as slowest:
                verdict = await executor.run(item)
                # What follows is the test's own time.
                await asyncio.sleep(0)
    assert isinstance(verdict, Completed | Failed | Retried)
    return verdict, slowest


@pytest.mark.parametrize("status", [200, 400])
@pytest.mark.parametrize("name", BODIES)
async def test_an_answer_is_checked_without_blocking_the_event_loop(name: str, status: int) -> None:
    body, expected = BODIES[name]
    # On a busy machine, to give memory back to it may take as long as all that is allowed: the best of ten.
    for _ in range(10):
        verdict, slowest = await judged(status, body)
        assert isinstance(verdict, expected if status == 200 else Failed)
        assert isinstance(verdict, Retried) or KEY.encode() not in verdict.output
        if slowest.is_quick:
            break
    slowest.check()
