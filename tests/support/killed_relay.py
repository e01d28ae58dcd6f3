"""`batchline run` in processes that kill themselves with SIGKILL at one step of a chunk.

A process imports the program once and forks for each run: most of the time of a short run goes into imports.
"""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec

from batchline.cli.commands import run as run_command
from batchline.cli.main import main
from batchline.store import provider_chunks, spans
from batchline.upstreams.relay.anthropic_batches import AnthropicBatches
from batchline.upstreams.relay.openai_batches import OpenAIBatches
from batchline.worker.relay import chunk_run
from tests.support.repository import ROOT

# In the order in which a chunk passes them.
STEPS = (
    "claimed",
    "formed",
    "uploaded",
    "recorded as uploaded",
    "recorded as creating",
    "while it is created",
    "created",
    "recorded as submitted",
    "recorded as ended",
    "before a settle",
    "settled",
    "before it is done",
)
# A creation is on its way for this long, in seconds, unless its answer is there before.
_ON_ITS_WAY = 0.02
# The first poll of a provider's batch, in seconds after its creation. The provider needs less.
_FIRST_POLL = 0.1


class ForkedRun(msgspec.Struct, frozen=True):
    """A command line, where its output goes, and the step at which it is killed. None: it is not killed."""

    arguments: list[str]
    log: str
    environment: dict[str, str]
    step: str | None = None


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class RelayKiller:
    def __init__(self, step: str) -> None:
        assert step in STEPS
        self._step = step

    def at(self, step: str) -> None:
        if step == self._step:
            die()

    def soon(self, step: str) -> None:
        if step == self._step:
            asyncio.get_running_loop().call_later(_ON_ITS_WAY, die)


def install(killer: RelayKiller) -> None:
    _around_store(killer)
    for api in (OpenAIBatches, AnthropicBatches):
        _around_api(api, killer)


def _around_store(killer: RelayKiller) -> None:
    claim, settle = spans.claim, spans.settle
    form, advance, end = provider_chunks.form, provider_chunks.advance, provider_chunks.end

    async def claim_then(*args: Any) -> Any:
        found = await claim(*args)
        if found:
            killer.at("claimed")
        return found

    async def settle_between(*args: Any) -> Any:
        killer.at("before a settle")
        settled = await settle(*args)
        killer.at("settled")
        return settled

    async def form_then(*args: Any) -> Any:
        formed = await form(*args)
        if formed is not None:
            killer.at("formed")
        return formed

    async def advance_then(session: Any, worker_id: Any, of: Any, to: Any) -> Any:
        done = await advance(session, worker_id, of, to)
        killer.at(f"recorded as {to.state}")
        return done

    async def end_after(*args: Any) -> Any:
        killer.at("before it is done")
        return await end(*args)

    spans.claim, spans.settle = claim_then, settle_between  # type: ignore[assignment]
    provider_chunks.form = form_then  # type: ignore[assignment]
    provider_chunks.advance = advance_then
    provider_chunks.end = end_after  # type: ignore[assignment]


def _around_api(api: type[Any], killer: RelayKiller) -> None:
    upload, create = api.upload, api.create

    async def upload_then(*args: Any) -> Any:
        file_id = await upload(*args)
        killer.at("uploaded")
        return file_id

    async def create_between(*args: Any) -> Any:
        killer.soon("while it is created")
        batch = await create(*args)
        # Nothing may be recorded: the answer was quicker.
        killer.at("while it is created")
        killer.at("created")
        return batch

    api.upload, api.create = upload_then, create_between


@dataclass(frozen=True, slots=True)
class Forks:
    """Starts runs as forks of one process, one at a time."""

    process: subprocess.Popen[bytes]

    def run(self, order: ForkedRun) -> int:
        """The exit code; negative: the signal that has killed it."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(msgspec.json.encode(order) + b"\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())


@contextmanager
def forks() -> Iterator[Forks]:
    command = [sys.executable, "-m", "tests.support.killed_relay"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as process:
        yield Forks(process)


def _serve() -> None:
    """Fork for each order on stdin, and answer with an exit code."""
    assert run_command, "it is imported before the first fork"
    for line in sys.stdin.buffer:
        order = msgspec.json.decode(line, type=ForkedRun)
        child = os.fork()
        if child == 0:
            _become(order)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _become(order: ForkedRun) -> None:
    """Be the run, and end."""
    log = os.open(order.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream, source in ((0, os.open(os.devnull, os.O_RDONLY)), (1, log), (2, log)):
        os.dup2(source, stream)
    os.environ.update(order.environment)
    sys.argv = ["batchline", *order.arguments]
    chunk_run._SHORTEST = _FIRST_POLL
    if order.step is not None:
        install(RelayKiller(order.step))
    code = 1
    try:
        main()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    finally:
        sys.stdout.flush()
        os._exit(code)


if __name__ == "__main__":
    _serve()
