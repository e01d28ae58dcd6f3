"""The profile's tables: WAL by kinds of records, CPU by places; and the parts of a page that they go into."""

from collections import Counter

import pytest

from benchmarks import marked, wal
from benchmarks.profile import Phase, ProfiledDrain, phases_table, wal_table, worker_table
from benchmarks.sampling import Sampler, Spot, spot
from benchmarks.wal import Record

_REPORTED = """\
WAL statistics between 0/1B17948 and 0/1B81C70:
Type                        N      (%)   Record size      (%)     FPI size      (%)  Combined size      (%)
----                        -      ---   -----------      ---     --------      ---  -------------      ---
Transaction/COMMIT          1 (  0.05)            34 (  0.01)            0 (  0.00)             34 (  0.01)
Heap/INSERT+INIT           42 (  2.10)         15246 (  3.56)         8192 ( 10.00)          23438 (  3.56)
                     --------               --------              --------               --------
Total                      43                  15280 [100.00%]        8192 [0.00%]           23472 [100%]
"""


def test_records_are_read_from_the_output_of_pg_waldump() -> None:
    assert wal.parse(_REPORTED) == [
        Record("Transaction/COMMIT", 1, 34, 0),
        Record("Heap/INSERT+INIT", 42, 15_246, 8_192),
    ]


def test_the_table_of_wal_has_each_kind_in_bytes_an_item_and_adds_up() -> None:
    accept = [Record("Heap2/MULTI_INSERT", 1, 3_000, 500), Record("Transaction/COMMIT", 1, 4, 0)]
    settle = [Record("Heap/INSERT", 10, 2_000, 0)]

    rows = wal_table({"accept": (accept, 10), "settle": (settle, 10)}).splitlines()[2:]

    assert rows == [
        "| `Heap2/MULTI_INSERT` | rows of COPY, many at once | 300.0 |  |",
        "| `Heap/INSERT` | a row |  | 200.0 |",
        "| others |  | 0.4 |  |",
        "| page images | whole pages, at their first change after a checkpoint | 50.0 |  |",
        "| **all** |  | **350.4** | **200.0** |",
        "| records per item |  | 0.20 | 1.00 |",
    ]


def test_a_phase_says_what_an_item_costs() -> None:
    phase = Phase("settle", 9.25, 2.5, 5.6, [Record("Heap/INSERT", 10, 2_000, 1_000)])

    assert phases_table([phase], 10).splitlines()[2] == "| settle | 9.2 | 2.5 | 5.6 | 300 |"


@pytest.mark.parametrize(
    ("modules", "expected"),
    [
        pytest.param(
            ["psycopg.cursor", "batchline.store.session", "batchline.worker.settler", "asyncio.runners"],
            Spot("worker.settler", "store.session", "psycopg"),
            id="in a library",
        ),
        pytest.param(
            ["batchline.store.verdicts", "batchline.worker.settler"],
            Spot("worker.settler", "store.verdicts", ""),
            id="in its own code",
        ),
        pytest.param(
            ["asyncio.events", "benchmarks.profile"], Spot("the event loop", "", ""), id="in neither"
        ),
    ],
)
def test_a_sample_belongs_to_a_task_and_to_the_module_that_it_is_in(
    modules: list[str], expected: Spot
) -> None:
    assert spot(modules) == expected


def test_the_sampler_sees_what_uses_the_cpu() -> None:
    with Sampler() as sampler:
        while not sampler.spots:
            pass

    assert set(sampler.spots) == {Spot("the event loop", "", "")}


def test_the_table_of_the_worker_sums_up_what_is_small() -> None:
    spots = Counter({Spot("worker.settler", "store.verdicts", ""): 99, Spot("worker.claimer", "", ""): 1})

    rows = worker_table(ProfiledDrain(10.0, spots)).splitlines()[2:]

    assert rows == [
        "| worker.settler | store.verdicts |  | 99 % | 9.90 |",
        "| others |  |  | 1 % | 0.10 |",
        "| **all** |  |  |  | **10.00** |",
    ]


def test_a_part_of_a_page_is_renewed_and_the_rest_stays() -> None:
    page = "before\n<!-- begin a -->\nold\n<!-- end a -->\nafter\n"

    assert marked.renewed(page, "a", "new \\1\n") == (
        "before\n<!-- begin a -->\nnew \\1\n<!-- end a -->\nafter\n"
    )


def test_a_page_without_the_part_is_refused() -> None:
    with pytest.raises(ValueError, match="begin a"):
        marked.renewed("nothing here", "a", "new")
