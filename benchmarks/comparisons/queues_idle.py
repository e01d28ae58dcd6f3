"""Queries that an idle worker sends, against other queues on PostgreSQL.

One idle worker per contestant, all at once, each with a separate database on a server that logs every
statement. The statements of each database are counted over two minutes, from 40 seconds after the start.
Statements that begin and commit transactions count too, because they also load the server.
"""

import asyncio
import re
from collections import Counter
from contextlib import ExitStack

from psycopg.conninfo import conninfo_to_dict

from benchmarks.bench import Bench
from benchmarks.contest import Figure, Series
from benchmarks.match import database, plain_server, players, working

_LOGGED = re.compile(r"^<(\w+) (?!benchmark)[^>]*> LOG: +(?:statement|execute [^:]*): ", re.MULTILINE)


async def compare(bench: Bench) -> list[Figure]:
    window = bench.size(120, quick=4)
    present, missing = players(bench)
    with (
        plain_server(bench.scratch, log_statement="all", log_line_prefix="<%d %a> ") as server,
        ExitStack() as stack,
    ):
        names = {}
        for player in present:
            url = stack.enter_context(database(server, player))
            names[str(conninfo_to_dict(url)["dbname"])] = player.label
            stack.enter_context(working(player, url))
        await asyncio.sleep(bench.size(40, quick=3))
        before = server.log.stat().st_size
        await asyncio.sleep(window)
        with server.log.open("rb") as log:
            log.seek(before)
            counts = Counter(names.get(name) for name in _LOGGED.findall(log.read().decode(errors="replace")))
    series = [
        Series(player.label, "queries per minute", [counts[player.label] / (window / 60)])
        for player in present
    ]
    return [
        Figure("queries per minute of an idle worker, Batchline", series[0].median, "", None, series, missing)
    ]
