"""`batchline run --order prefix` against the order of the file, where an upstream caches prompts' beginnings.

Each line has one of 10 or 40 long instructions and a short question of its own, in random order in the file.
The upstreams are the simulated one with a prefix cache that holds a quarter of the instructions, as vLLM's
would, and a real llama.cpp server. That keeps the last prompt, and by default copies of earlier ones in 8 GiB
of memory, which is room for all of them here; so it runs without these copies, too. As many requests are in
flight as the upstream works on, and one more for llama.cpp. Rates are those of the batch; the time to sort
lines is part of the whole command.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from random import Random

from benchmarks.bench import Bench
from benchmarks.comparisons.run import run_batch
from benchmarks.contest import Contestant, Figure, alternate, ratio
from benchmarks.inputs import write_chats
from benchmarks.processes import llama, simulator

# Instructions, each for 50 or 40 lines.
_SIMULATED, _LLAMA = 40, 10
# Letters, which are tokens of the small model; a token of the simulated upstream has four.
_INSTRUCTION = 800
_TOKENS = 8
_WORDS = "answer briefly and only with what is known about this and nothing else "
# 200 tokens in blocks of 16, for a quarter of the instructions.
_CACHE = _SIMULATED * 200 // 16 // 4


@dataclass(frozen=True, slots=True)
class CachingUpstream:
    name: str
    model: str
    serve: Callable[[], AbstractContextManager[str]]
    concurrency: int
    instructions: int
    lines: int


async def compare(bench: Bench) -> list[Figure]:
    options = ("--prompt-latency", "0.5", "--prefix-cache", str(_CACHE), "--concurrency", "8")
    upstreams = (
        CachingUpstream(
            name="simulated prefix cache",
            model="sim-small",
            serve=lambda: simulator(5, options=options),
            concurrency=8,
            instructions=_SIMULATED,
            lines=2000,
        ),
        _llama("llama.cpp"),
        _llama("llama.cpp without copies", "--cache-ram", "0"),
    )
    return [await _on(bench, each) for each in upstreams]


def _llama(name: str, *options: str) -> CachingUpstream:
    return CachingUpstream(
        name=name,
        model="tiny",
        serve=lambda: llama(*options),
        concurrency=2,
        instructions=_LLAMA,
        lines=400,
    )


async def _on(bench: Bench, upstream: CachingUpstream) -> Figure:
    lines = bench.size(upstream.lines, quick=40)
    path = bench.scratch / "prefix.jsonl"
    write_chats(path, _prompts(lines, upstream.instructions), model=upstream.model, max_tokens=_TOKENS)

    def in_order(order: str) -> Contestant:
        options = ("--order", order, "--concurrency", str(upstream.concurrency))

        async def rate() -> float:
            with upstream.serve() as url:
                seconds, _ = run_batch(bench.scratch, path, url, *options)
            return lines / seconds

        return Contestant(f"--order {order}", "requests/s", rate)

    by_prefix, by_file = await alternate(bench.rounds, in_order("prefix"), in_order("file"))
    path.unlink()
    return ratio(f"requests per second, {upstream.name}", by_prefix, by_file)


def _prompts(lines: int, instructions: int) -> list[str]:
    prompts = [
        f"{_instruction(nth % instructions)} now answer question {nth} about that" for nth in range(lines)
    ]
    Random(0).shuffle(prompts)
    return prompts


def _instruction(group: int) -> str:
    """Instructions that differ from their first letters on."""
    name = "".join(chr(ord("a") + group // 26**digit % 26) for digit in range(3))
    return (f"{name} {_WORDS}" * (_INSTRUCTION // len(_WORDS) + 1))[:_INSTRUCTION]
