"""The embedded server, with real processes and real signals."""

import errno
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path
from typing import LiteralString

import psutil
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from batchline.embedded import EmbeddedPostgres, EmbeddedPostgresError, default_data_dir
from tests.support.waiting import LIMIT

fcntl = pytest.importorskip("fcntl", reason="the embedded server does not run on Windows")

FAST = {"fsync": "off", "shared_buffers": "16MB"}

USER = """
import sys
from pathlib import Path
from batchline.embedded import EmbeddedPostgres

with EmbeddedPostgres.start(Path(sys.argv[1]), settings={"fsync": "off", "shared_buffers": "16MB"}) as server:
    print(server.postmaster_pid, flush=True)
    sys.stdin.read()
"""


class User:
    """Another process that uses the server of a data folder until it leaves or is killed."""

    def __init__(self, data_dir: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", USER, str(data_dir)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def joined(self) -> int:
        """Waits until the server is there, and says which one."""
        assert self.process.stdout
        return int(self.process.stdout.readline())

    def leave(self) -> None:
        self.process.communicate(timeout=LIMIT)
        assert self.process.returncode == 0, "a user that leaves should end well"

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=LIMIT)

    def kill_with_children(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate(timeout=LIMIT)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with a cluster, which every test leaves stopped and whole."""
    data_dir = tmp_path_factory.mktemp("data")
    EmbeddedPostgres.start(data_dir, settings=FAST).stop()
    return data_dir


@pytest.fixture
def user(data_dir: Path) -> Iterator[Callable[[], User]]:
    """Makes users of the data folder; the test's end ends those that are left."""
    users: list[User] = []

    def make() -> User:
        users.append(User(data_dir))
        return users[-1]

    yield make
    for left in users:
        if left.process.poll() is None:
            left.leave()


def ask(server: EmbeddedPostgres, query: LiteralString) -> object:
    with psycopg.connect(server.url) as connection:
        row = connection.execute(query).fetchone()
        return row and row[0]


def socket_of(server: EmbeddedPostgres) -> Path:
    address = conninfo_to_dict(server.url)
    return Path(str(address["host"]), f".s.PGSQL.{address['port']}")


def eventually(fact: Callable[[], object], expectation: str) -> None:
    deadline = time.monotonic() + LIMIT
    while not fact():
        assert time.monotonic() < deadline, f"expected within {LIMIT:g} s: {expectation}"
        time.sleep(0.005)


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def assert_stopped(data_dir: Path, postmaster_pid: int) -> None:
    eventually(lambda: is_gone(postmaster_pid), "the postmaster has ended")
    assert not (data_dir / "postgres/postmaster.pid").exists(), "a server that was stopped leaves no pid file"


def kill_postmaster(server: EmbeddedPostgres) -> None:
    os.kill(server.postmaster_pid, signal.SIGKILL)
    eventually(lambda: is_gone(server.postmaster_pid), "the killed postmaster has ended")


def write_pid_file(data_dir: Path, pid: int) -> None:
    cluster = data_dir / "postgres"
    lines = (pid, cluster, int(time.time()), 5432, cluster, "", "  1234567        42", "ready   ")
    (cluster / "postmaster.pid").write_text("".join(f"{line}\n" for line in lines))


def test_a_fresh_folder_gets_a_server_that_answers_and_keeps_its_log(tmp_path: Path) -> None:
    with EmbeddedPostgres.start(tmp_path / "not/there/yet", settings=FAST) as server:
        assert ask(server, "SELECT current_database()") == "batchline"
        assert ask(server, "SELECT upper('é') || current_setting('server_encoding')") == "ÉUTF8"
        log = (server.data_dir / "postgres.log").read_text()
    assert "ready to accept connections" in log
    assert_stopped(server.data_dir, server.postmaster_pid)


def test_the_server_is_durable_unless_set_otherwise(data_dir: Path) -> None:
    with EmbeddedPostgres.start(data_dir) as server:
        for setting in ("fsync", "synchronous_commit", "full_page_writes", "autovacuum"):
            with psycopg.connect(server.url) as connection:
                row = connection.execute("SELECT current_setting(%s)", (setting,)).fetchone()
            assert row == ("on",), f"{setting} should be on"


def test_the_server_admits_only_its_own_account(data_dir: Path) -> None:
    with EmbeddedPostgres.start(data_dir, settings=FAST) as server:
        assert ask(server, "SHOW listen_addresses") == ""
        assert socket_of(server).stat().st_mode & 0o777 == 0o700


def test_the_server_listens_on_no_network(data_dir: Path) -> None:
    with EmbeddedPostgres.start(data_dir, settings=FAST) as server:
        postmaster = psutil.Process(server.postmaster_pid)
        sockets = []
        for process in (postmaster, *postmaster.children()):
            try:
                # A worker of autovacuum, say, may end between the two looks.
                with suppress(psutil.NoSuchProcess):
                    sockets += process.net_connections("inet")
            except psutil.AccessDenied:
                pytest.skip("root in this container may not look into another user's process")
        assert not sockets
        assert not is_gone(server.postmaster_pid)


def test_a_second_process_shares_the_server_that_runs(data_dir: Path, user: Callable[[], User]) -> None:
    with EmbeddedPostgres.start(data_dir, settings=FAST) as server:
        assert user().joined() == server.postmaster_pid
        assert not is_gone(server.postmaster_pid)


def test_only_the_last_one_out_stops_the_server(data_dir: Path, user: Callable[[], User]) -> None:
    first, second = user(), user()
    postmaster = first.joined()
    assert second.joined() == postmaster
    with EmbeddedPostgres.start(data_dir) as here, EmbeddedPostgres.start(data_dir) as twice_here:
        first.leave()
        assert ask(here, "SELECT 1") == 1
        here.stop()
        here.stop()
        assert ask(twice_here, "SELECT 1") == 1, "the other use in the same process should keep the server"
    assert not is_gone(postmaster), "one user is left, so the server should run"
    second.leave()
    assert_stopped(data_dir, postmaster)


def test_the_server_stops_when_its_last_process_exits_without_closing_it(data_dir: Path) -> None:
    forgetful = USER.replace("with ", "server = ").replace(" as server:", "").replace("\n    ", "\n")
    done = subprocess.run(
        [sys.executable, "-c", forgetful, str(data_dir)], input="", capture_output=True, text=True, check=True
    )
    assert_stopped(data_dir, int(done.stdout))


def test_a_fork_does_not_give_up_its_parents_use(data_dir: Path) -> None:
    parent = """
import os, sys
from pathlib import Path
from batchline.embedded import EmbeddedPostgres

with EmbeddedPostgres.start(Path(sys.argv[1])) as server:
    if child := os.fork():
        os.waitpid(child, 0)
        os.kill(server.postmaster_pid, 0)
        print(server.postmaster_pid)
"""
    done = subprocess.run([sys.executable, "-c", parent, str(data_dir)], stdout=subprocess.PIPE, check=True)
    assert_stopped(data_dir, int(done.stdout))


def test_the_server_holds_none_of_the_locks(data_dir: Path, user: Callable[[], User]) -> None:
    killed = user()
    postmaster = killed.joined()
    killed.kill()
    assert not is_gone(postmaster)
    for name in ("users.lock", "start.lock"):
        with (data_dir / name).open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    EmbeddedPostgres.start(data_dir).stop()


def test_a_killed_user_does_not_keep_the_server_alive(data_dir: Path, user: Callable[[], User]) -> None:
    killed, leaver = user(), user()
    postmaster = killed.joined()
    leaver.joined()
    killed.kill()
    leaver.leave()
    assert_stopped(data_dir, postmaster)


def test_a_server_whose_last_user_was_killed_serves_the_next(
    data_dir: Path, user: Callable[[], User]
) -> None:
    killed = user()
    postmaster = killed.joined()
    killed.kill()
    with EmbeddedPostgres.start(data_dir) as server:
        assert server.postmaster_pid == postmaster, "the server should not have been started again"
        assert ask(server, "SELECT 1") == 1
    assert_stopped(data_dir, postmaster)


def test_a_killed_server_is_started_again_with_its_data(data_dir: Path) -> None:
    with EmbeddedPostgres.start(data_dir) as killed:
        with psycopg.connect(killed.url) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")
        kill_postmaster(killed)
        with EmbeddedPostgres.start(data_dir) as server:
            assert server.postmaster_pid != killed.postmaster_pid
            assert ask(server, "SELECT answer FROM kept") == 42
            assert server.url == killed.url, "who knows the address should find the new server"


def test_a_backend_that_outlives_its_postmaster_is_ended(data_dir: Path) -> None:
    with (
        EmbeddedPostgres.start(data_dir, settings=FAST) as killed,
        closing(psycopg.connect(killed.url)) as busy,
    ):
        backend = busy.info.backend_pid
        busy.pgconn.send_query(
            b"SELECT count(*) FROM generate_series(1, 1e9::int) a, generate_series(1, 9) b"
        )
        eventually(lambda: psutil.Process(backend).cpu_times().user > 0.02, "the backend computes")
        kill_postmaster(killed)
        assert not is_gone(backend), "this test needs a backend that did not notice"
        with EmbeddedPostgres.start(data_dir, settings=FAST) as server:
            assert is_gone(backend)
            assert ask(server, "SELECT 1") == 1


def test_a_foreign_process_with_the_pid_is_not_taken_for_the_server(data_dir: Path) -> None:
    write_pid_file(data_dir, os.getpid())
    with EmbeddedPostgres.start(data_dir, settings=FAST) as server:
        assert server.postmaster_pid != os.getpid()
        assert ask(server, "SELECT 1") == 1


def test_to_stop_a_dead_server_signals_no_foreign_process_with_its_pid(data_dir: Path) -> None:
    server = EmbeddedPostgres.start(data_dir, settings=FAST)
    kill_postmaster(server)
    with subprocess.Popen(["sleep", "60"], user=(data_dir / "postgres").stat().st_uid) as foreign:
        write_pid_file(data_dir, foreign.pid)
        server.stop()
        assert foreign.poll() is None, "the foreign process should not have been signalled"
        foreign.kill()


def has_begun(data_dir: Path) -> bool:
    return any(data_dir.glob("postgres.new-*/PG_VERSION")) or (data_dir / "postgres").exists()


@pytest.mark.parametrize("kill", [User.kill, User.kill_with_children], ids=["alone", "with initdb"])
def test_a_process_killed_while_it_makes_the_cluster_leaves_no_harm(
    tmp_path: Path, kill: Callable[[User], None]
) -> None:
    for number in range(10):
        data_dir = tmp_path / str(number)
        killed = User(data_dir)
        eventually(partial(has_begun, data_dir), "initdb has begun")
        kill(killed)
        # Half a cluster should not be there under the cluster's name. A whole one is if this test came late.
        unfinished = not (data_dir / "postgres").exists()
        with EmbeddedPostgres.start(data_dir, settings=FAST) as server:
            assert ask(server, "SELECT current_database()") == "batchline"
        if unfinished:
            return
    raise AssertionError("the cluster was made each time before the kill")


def test_a_process_killed_while_it_starts_the_server_leaves_no_harm(
    data_dir: Path, user: Callable[[], User]
) -> None:
    killed = user()
    pid_file, process = data_dir / "postgres/postmaster.pid", psutil.Process(killed.process.pid)
    eventually(lambda: process.children() or pid_file.exists(), "pg_ctl has been started")
    killed.kill()
    with EmbeddedPostgres.start(data_dir, settings=FAST) as server:
        assert ask(server, "SELECT 1") == 1
    assert_stopped(data_dir, server.postmaster_pid)


def test_processes_that_start_at_the_same_moment_get_one_server(tmp_path: Path) -> None:
    users = [User(tmp_path) for _ in range(3)]
    postmasters = {user.joined() for user in users}
    for user in users:
        user.leave()
    assert len(postmasters) == 1
    assert_stopped(tmp_path, postmasters.pop())


def test_a_server_that_lost_its_socket_is_replaced(data_dir: Path) -> None:
    with EmbeddedPostgres.start(data_dir, settings=FAST) as deaf:
        socket_of(deaf).unlink()
        with EmbeddedPostgres.start(data_dir, settings=FAST) as server:
            assert is_gone(deaf.postmaster_pid)
            assert ask(server, "SELECT 1") == 1


@pytest.mark.parametrize(
    "name",
    [
        "/".join(["a-very-long-name"] * 10),
        "mit Leerzeichen, Ümläuten, 批",
        """$HOME "quoted" it's `id` 100% & co""",
    ],
    ids=["long", "unicode", "shell"],
)
def test_any_path_will_do(data_dir: Path, tmp_path: Path, name: str) -> None:
    odd = shutil.copytree(data_dir, tmp_path / name)
    with EmbeddedPostgres.start(odd, settings=FAST) as server:
        assert ask(server, "SHOW data_directory") == str(odd / "postgres")
        with EmbeddedPostgres.start(odd) as again:
            assert again.postmaster_pid == server.postmaster_pid
    assert_stopped(odd, server.postmaster_pid)
    assert not socket_of(server).exists()


def test_a_pgport_in_the_environment_changes_nothing(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPORT", "6543")
    monkeypatch.setenv("PGDATA", "/nowhere")
    with EmbeddedPostgres.start(data_dir, settings=FAST) as server:
        assert ask(server, "SELECT 1") == 1


def test_a_cluster_of_another_version_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "postgres").mkdir()
    (tmp_path / "postgres/PG_VERSION").write_text("16\n")
    with pytest.raises(
        EmbeddedPostgresError, match="created by PostgreSQL 16; this Batchline includes PostgreSQL 18"
    ):
        EmbeddedPostgres.start(tmp_path)


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "postgres").mkdir()
    (tmp_path / "postgres/diary.txt").write_text("mine")
    with pytest.raises(EmbeddedPostgresError, match="not a PostgreSQL cluster"):
        EmbeddedPostgres.start(tmp_path)
    assert [file.name for file in (tmp_path / "postgres").iterdir()] == ["diary.txt"]


def test_a_server_that_cannot_start_says_why(data_dir: Path) -> None:
    with pytest.raises(EmbeddedPostgresError, match='unrecognized configuration parameter "no_such_setting"'):
        EmbeddedPostgres.start(data_dir, settings={"no_such_setting": "1"})
    with EmbeddedPostgres.start(data_dir, settings=FAST) as server:
        assert ask(server, "SELECT 1") == 1
    assert_stopped(data_dir, server.postmaster_pid)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs the server as another user")
def test_root_opens_folders_on_the_way_to_the_servers_account_alone(data_dir: Path, tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    with EmbeddedPostgres.start(shutil.copytree(data_dir, closed / "data"), settings=FAST) as server:
        assert psutil.Process(server.postmaster_pid).uids().real != 0
        assert psutil.Process(server.postmaster_pid).gids().real != 0
    assert closed.stat().st_mode & 0o007 == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root needs a user for the server")
def test_root_without_useradd_gets_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("batchline.embedded.account._NAME", "no-such-user-here")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(EmbeddedPostgresError, match=r"Run as another user.*--database"):
        EmbeddedPostgres.start(tmp_path)


def test_the_default_folder_is_the_environments_or_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCHLINE_DATA_DIR", "/somewhere")
    assert default_data_dir() == Path("/somewhere")
    monkeypatch.delenv("BATCHLINE_DATA_DIR")
    assert default_data_dir().name == "batchline"


def test_a_squatter_in_tmp_is_not_trusted(tmp_path: Path) -> None:
    """A long path puts the socket into /tmp, where anyone may have made a folder of that name before."""
    cluster = tmp_path / "/".join(["a-very-long-name"] * 10) / "postgres"
    cluster.mkdir(parents=True)
    (cluster / "PG_VERSION").write_text("18\n")
    status = cluster.stat()
    squatted = Path(f"/tmp/batchline-{status.st_dev:x}-{status.st_ino:x}")
    squatted.symlink_to(tmp_path)
    try:
        with pytest.raises(EmbeddedPostgresError, match="belongs to another user"):
            EmbeddedPostgres.start(cluster.parent)
    finally:
        squatted.unlink()


def test_a_full_queue_of_connections_is_a_living_server(data_dir: Path) -> None:
    with EmbeddedPostgres.start(data_dir, settings=FAST) as server, ExitStack() as cleanup:
        postmaster = psutil.Process(server.postmaster_pid)
        postmaster.suspend()
        cleanup.callback(postmaster.resume)
        refusal = 0
        while refusal == 0:
            client = cleanup.enter_context(socket.socket(socket.AF_UNIX))
            client.setblocking(False)
            refusal = client.connect_ex(str(socket_of(server)))
        assert refusal == errno.EAGAIN
        with EmbeddedPostgres.start(data_dir) as patient:
            assert patient.postmaster_pid == server.postmaster_pid
