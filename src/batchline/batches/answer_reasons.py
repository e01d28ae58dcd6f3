"""Says why answers do not match their schema, in child processes with limits on time and memory.

That takes exponential time if the schema refers to itself, and is one long call into a library: in this
process it would stop the event loop, and with it all other work. The operating system ends a child that has
used up its time; then the answer is still wrong, and only the reasons are missing.
"""

import asyncio
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache
from itertools import islice

import msgspec
from jsonschema_rs import Draft202012Validator

from batchline.batches.answers import answer_validator, reason
from batchline.host.subprocesses import Subprocesses, begin_child, receive, send

MAX_SECONDS = 0.5
"""CPU time for one answer."""

# The model and the user have the answer. Without its values, answers that are wrong alike have one cause.
_VALUE = "the value"
_CHILDREN = 2
_MAX_REASONS = 3
_MAX_MEMORY = 2 * 1024**3
_CACHED = 64


class _ReasonRequest(msgspec.Struct, frozen=True):
    schema: str
    text: str


_encode = msgspec.msgpack.Encoder().encode
_decode_request = msgspec.msgpack.Decoder(_ReasonRequest).decode
_decode_reasons = msgspec.msgpack.Decoder(list[str]).decode


class AnswerReasons:
    """Children start on demand, so that most runs have none."""

    def __init__(self) -> None:
        self._children = Subprocesses("batchline.batches.answer_reasons")
        self._threads = ThreadPoolExecutor(_CHILDREN, "answer-reasons")

    async def find(self, schema: str, text: str) -> list[str] | None:
        """The first few reasons; None if that takes too long, or the worker ends."""
        request = _encode(_ReasonRequest(schema, text))
        answer = await asyncio.get_running_loop().run_in_executor(self._threads, self._children.ask, request)
        return None if answer is None else _decode_reasons(answer)

    def close(self) -> None:
        """Calls that wait end without reasons."""
        self._children.close()
        self._threads.shutdown()


def main() -> None:
    """The child: answer requests until the standard input ends."""
    answers = begin_child()
    _limit_memory()
    while (request := receive(sys.stdin.buffer)) is not None:
        # SIGPROF ends the process even inside a call that never returns to Python.
        signal.setitimer(signal.ITIMER_PROF, MAX_SECONDS)
        found = reasons(_decode_request(request))
        signal.setitimer(signal.ITIMER_PROF, 0)
        send(answers, _encode(found))


def reasons(request: _ReasonRequest) -> list[str]:
    errors = _validator(request.schema).iter_errors(msgspec.json.decode(request.text))
    return list(map(reason, islice(errors, _MAX_REASONS)))


@lru_cache(_CACHED)
def _validator(schema: str) -> Draft202012Validator:
    return answer_validator(schema, _VALUE)


def _limit_memory() -> None:
    # Does not exist on Windows, where commands work without children.
    import resource

    # Some systems refuse to set it.
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_AS, (_MAX_MEMORY, _MAX_MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


if __name__ == "__main__":
    main()
