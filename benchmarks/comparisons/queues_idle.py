"""How many queries an idle worker sends, against other queues on PostgreSQL.

An idle worker of each contestant, all at once, each with a database of its own on a server that logs every
statement; those of each database are counted over two minutes, from 40 seconds after the start. What a
contestant sends to begin and to commit is counted as well, for it makes the server work too.
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
        Series(player.label, "queries a minute", [counts[player.label] / (window / 60)]) for player in present
    ]
    return [
        Figure("queries a minute of an idle worker, Batchline", series[0].median, "", None, series, missing)
    ]
