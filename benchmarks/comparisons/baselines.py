"""Claim and settle, against the eager design and against the array design (docs/why-not-the-array.md).

All three claim 500 lines with their bodies at once, with SKIP LOCKED where rows are locked, and store 500
result texts in one statement. All use the same kind of session: one psycopg connection, binary, prepared.
Batchline and the eager design drain the whole batch. The array, as published, would never end. One condition
fixes that; otherwise it is as proposed, with the indexes of the schema it was proposed for and PostgreSQL's
default planning. The bar applies to this form. The most favourable form that we found (a second array, an
index for its claim, plans without scans) is listed too. Both would take minutes per round. So SQL sets them
to the state of a drain that has finished a sixth, a half and five sixths of the lines; after a vacuum they
claim and settle a few times in each state. The minimum for any design, which only reads 500 bodies and
inserts 500 results, shows how much is left to gain.
"""

from batchline.store.session import Session
from benchmarks.baselines.array import Array
from benchmarks.baselines.eager import Eager
from benchmarks.baselines.minimum import Minimum
from benchmarks.bench import Bench
from benchmarks.contest import Contestant, Figure, alternate, at_least, ratio
from benchmarks.drain import CHUNK, CursorAndSpans, drain
from benchmarks.inputs import a_batch, fill_file
from benchmarks.server import vacuum
from benchmarks.timing import seconds

_POSITIONS = (1 / 6, 3 / 6, 5 / 6)


async def compare(bench: Bench) -> list[Figure]:
    lines = bench.size(300_000, quick=10_000)
    with (
        bench.server.database() as url,
        bench.server.database(migrated=False) as eager_url,
        bench.server.database(migrated=False) as min_url,
    ):
        file_id = fill_file(url, lines)
        Eager.set_up(eager_url, lines)
        Minimum.set_up(min_url, lines)
        async with (
            Session(url, "benchmark") as session,
            Session(eager_url, "eager", timeout=600) as eager,
            Session(min_url, "least") as bare,
        ):

            async def cursor_and_spans() -> float:
                await a_batch(session, file_id)
                bench.server.settle_down()
                return (await drain(CursorAndSpans(session))).rate

            async def eager_rows() -> float:
                design = Eager(eager)
                await design.create()
                vacuum(eager_url)
                bench.server.settle_down()
                return (await drain(design)).rate

            async def read_and_insert() -> float:
                design = Minimum(bare)
                await design.create()
                bench.server.settle_down()
                return (await drain(design)).rate

            ours, rows, array, kind_array, minimum = await alternate(
                bench.rounds,
                Contestant("Batchline", "items/s", cursor_and_spans),
                Contestant("a row for each line", "items/s", eager_rows),
                Contestant("array, fixed", "items/s", lambda: _array(bench, lines, "array")),
                Contestant("array, favourable form", "items/s", lambda: _array(bench, lines, "array_kind")),
                Contestant("minimum of work", "items/s", read_and_insert),
            )
    return [
        ratio(f"items per second of {lines:,}, to the eager design", ours, rows, at_least(2)),
        ratio(f"items per second of {lines:,}, to the array", ours, array, at_least(100)),
        ratio(f"items per second of {lines:,}, to the array, favourable form", ours, kind_array),
        ratio(f"items per second of {lines:,}, to the minimum of work", ours, minimum),
        ratio(f"items per second of {lines:,}, the minimum of work to the array", minimum, array),
    ]


async def _array(bench: Bench, lines: int, form: str) -> float:
    pairs = bench.size(6, quick=2)
    spent = 0.0
    with bench.server.database(migrated=False) as url:
        async with Session(url, "array", timeout=600) as session:
            design = Array(session, form)
            design.set_up(url, lines)
            await design.create()
            for position in _POSITIONS:
                await design.advance(int(lines * position))
                vacuum(url)
                bench.server.settle_down()
                for _ in range(pairs):
                    spent += await seconds(_pair(design))
    return len(_POSITIONS) * pairs * CHUNK / spent


async def _pair(design: Array) -> None:
    await design.settle(await design.claim(CHUNK))
