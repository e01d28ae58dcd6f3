"""The contestants, and what the contests need to know about each."""

from dataclasses import dataclass

from psycopg import sql


@dataclass(frozen=True, slots=True)
class Entrant:
    # The name of the driver and of the environment's lock.
    module: str
    label: str
    # Returns a row while anything is unfinished. It looks for the newest first, so it is cheap while much is
    # left.
    unfinished: sql.SQL
    # As many as take it about five seconds or more, but at most a hundred thousand.
    items: int
    # The smallest and largest number of items in queues-growth: three rounds must end in a bounded time.
    growth: tuple[int, int]
    # Wake-ups per round.
    wakes: int = 30
    python: tuple[int, int] = (3, 11)

    @property
    def is_ours(self) -> bool:
        return self in (BATCHLINE, LIBRARY)


BATCHLINE = Entrant(
    "batchline",
    "Batchline",
    sql.SQL("SELECT FROM batchline.batches WHERE finalizing_at IS NULL LIMIT 1"),
    100_000,
    (10_000, 1_000_000),
)
LIBRARY = Entrant(
    "batchline_library",
    "Batchline's Python library",
    BATCHLINE.unfinished,
    100_000,
    (10_000, 1_000_000),
)
PGQUEUER = Entrant(
    "pgqueuer",
    "PgQueuer",
    sql.SQL("SELECT FROM pgqueuer ORDER BY id DESC LIMIT 1"),
    100_000,
    (10_000, 1_000_000),
)
OTHERS = (
    PGQUEUER,
    Entrant(
        "oban",
        "Oban",
        sql.SQL("""
            SELECT FROM oban_jobs WHERE state NOT IN ('completed', 'discarded', 'cancelled')
            ORDER BY id DESC LIMIT 1
        """),
        5_000,
        (500, 5_000),
        python=(3, 12),
    ),
    Entrant(
        "awa",
        "awa",
        sql.SQL(
            "SELECT FROM awa.jobs_hot WHERE queue = 'items' AND state IN ('available', 'running') LIMIT 1"
        ),
        20_000,
        (2_000, 20_000),
    ),
    Entrant(
        "chancy",
        "Chancy",
        sql.SQL("SELECT FROM chancy_jobs WHERE state NOT IN ('succeeded', 'failed') LIMIT 1"),
        5_000,
        (500, 5_000),
    ),
    Entrant(
        "procrastinate",
        "Procrastinate",
        sql.SQL("""
            SELECT FROM procrastinate_jobs WHERE status IN ('todo', 'doing') ORDER BY id DESC LIMIT 1
        """),
        2_000,
        (250, 2_500),
    ),
    Entrant(
        "dbos",
        "DBOS",
        sql.SQL("SELECT FROM dbos.workflow_status WHERE status IN ('ENQUEUED', 'PENDING') LIMIT 1"),
        1_500,
        (250, 2_500),
        wakes=8,
    ),
)
