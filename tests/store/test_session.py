"""A session whose other side falls silent holds nobody up for longer than it says."""

import asyncio
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from batchline.store.session import Session, StoreUnavailable
from chaos.proxy import Proxy

LOCK = "SELECT FROM batchline.maintenance_tasks WHERE name = 'sweep' FOR UPDATE"


async def test_a_client_that_vanishes_in_a_transaction_keeps_its_locks_no_longer_than_its_time_limit(
    database_url: str,
) -> None:
    """Half-open, as when a machine loses its power: nothing tells the server that nobody is there."""
    location = conninfo_to_dict(database_url)
    if not str(location.get("host", "")).startswith("/"):
        pytest.skip("the proxy stands in front of a socket of this machine")

    async def vanish(session: Session, proxy: Proxy) -> None:
        async with session.transaction() as connection:
            await connection.execute(LOCK)
            proxy.open_half()
            await asyncio.Event().wait()

    proxy = Proxy(Path(str(location["host"]), f".s.PGSQL.{location.get('port', 5432)}"))
    await proxy.start()
    try:
        behind = make_conninfo(database_url, host="127.0.0.1", port=proxy.port, sslmode="disable")
        async with Session(behind, "vanishing", timeout=1.0) as session:
            with pytest.raises(StoreUnavailable):
                await vanish(session, proxy)
        async with await psycopg.AsyncConnection.connect(database_url) as other:
            await other.execute("SET statement_timeout = '120s'")
            await other.execute(LOCK)
    finally:
        await proxy.stop()


async def test_the_server_probes_idle_connections_and_sets_no_idle_timeout(database_url: str) -> None:
    async with Session(database_url, "watched") as session, session.open_ended() as connection:
        row = await (
            await connection.execute(
                "SELECT current_setting('idle_in_transaction_session_timeout'), inet_client_addr(),"
                " current_setting('tcp_keepalives_idle')"
            )
        ).fetchone()
    assert row is not None
    assert row[0] == "0", "who reads a stream may take as long as it likes"
    assert row[1] is None or row[2] == "10"


async def test_text_is_utf8_whatever_the_environment_says(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGCLIENTENCODING", "latin1")
    async with Session(database_url, "encoded") as session, session.open_ended() as connection:
        assert connection.pgconn.parameter_status(b"client_encoding") == b"UTF8"
