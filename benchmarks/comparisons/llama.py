"""`batchline run` with its defaults against a real llama.cpp server, and the same with a fixed concurrency.

The server works on one request at a time, queues the others and never refuses (tools/llama_server.py, with a
small model that is generated). All share the machine's cores. A rate is that of the batch, from its creation
to the last settle. So the time in which the adaptive limit finds its value counts, too. The best fixed
concurrency is that with the highest median.
"""

from pathlib import Path

from benchmarks.bench import Bench
from benchmarks.comparisons.run import run_batch
from benchmarks.contest import Contestant, Figure, alternate, at_least, ratio
from benchmarks.inputs import write_chats
from benchmarks.processes import llama

_FIXED = (1, 2, 4, 16, 64)
_TOKENS = 40


async def compare(bench: Bench) -> list[Figure]:
    lines = bench.size(1000, quick=40)
    prompts = (f"what is said in line {nth} matters little" for nth in range(lines))
    path = write_chats(bench.scratch / "llama.jsonl", prompts, model="tiny", max_tokens=_TOKENS)
    chosen = _FIXED[: bench.size(len(_FIXED), quick=2)]
    adaptive, *fixed = await alternate(
        bench.rounds,
        _contestant(bench, path, lines, "defaults"),
        *(_contestant(bench, path, lines, f"{n} in flight", "--concurrency", str(n)) for n in chosen),
    )
    best = max(fixed, key=lambda series: series.median)
    path.unlink()
    figures = [
        ratio(f"defaults against the best fixed concurrency ({best.name})", adaptive, best, at_least(0.9))
    ]
    return figures + [
        ratio(f"defaults against {each.name}", adaptive, each) for each in fixed if each is not best
    ]


def _contestant(bench: Bench, path: Path, lines: int, name: str, *options: str) -> Contestant:
    async def rate() -> float:
        with llama() as upstream:
            seconds, _ = run_batch(bench.scratch, path, upstream, *options)
        return lines / seconds

    return Contestant(name, "requests/s", rate)
