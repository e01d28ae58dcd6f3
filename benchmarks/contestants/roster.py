"""Who takes part, and what the contest must know of each."""

from dataclasses import dataclass

from psycopg import sql


@dataclass(frozen=True, slots=True)
class Entrant:
    # The driver, and the lock of the environment.
    module: str
    label: str
    # A row as long as anything is unfinished. The newest is looked for first, so that the question costs
    # little while much is left.
    unfinished: sql.SQL
    # As many as take it some five seconds or more, and no more than a hundred thousand.
    items: int
    # From how many to how many its growth is followed: as far as it gets in bounded time, three rounds of it.
    growth: tuple[int, int]
    # How often it is woken, in a round.
    wakes: int = 30
    python: tuple[int, int] = (3, 11)

    @property
    def is_ours(self) -> bool:
        return self is BATCHLINE


BATCHLINE = Entrant(
    "batchline",
    "Batchline",
    sql.SQL("SELECT FROM batchline.batches WHERE finalizing_at IS NULL LIMIT 1"),
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
