"""Report of a run: on the terminal, as JSON, and as a page."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from chaos.checker import FindingKind
from chaos.round import RoundOutcome
from chaos.schedule import ATTEMPTS, LEASE, STORM, TIMEOUT, Fault


class ChaosResults(msgspec.Struct, frozen=True):
    """The results of a run, with everything needed to repeat it."""

    date: str
    command: str
    seed: int
    workers: int
    minutes: float
    machine: dict[str, str]
    versions: dict[str, str]
    rounds: int
    faults: dict[str, int]
    batches: dict[str, int]
    completed: int
    failed: int
    never_ran: int
    requests: int
    runs: int
    resent: int
    attempts: int
    rule_broken: int
    swept: int
    longest_calm: float
    lost: int
    doubled: int
    wrong: int
    findings: list[str]

    @property
    def finished(self) -> int:
        return self.completed + self.failed

    @property
    def clean(self) -> bool:
        return not self.findings


def sum_up(outcomes: list[RoundOutcome], **about: object) -> ChaosResults:
    faults: Counter[Fault] = Counter()
    batches: Counter[str] = Counter()
    kinds: Counter[FindingKind] = Counter()
    findings = []
    for outcome in outcomes:
        faults += outcome.faults
        batches += outcome.tally.batches
        kinds += Counter(finding.kind for finding in outcome.findings)
        findings += [f"round {outcome.schedule.round}: {finding}" for finding in outcome.findings]
    tallies = [outcome.tally for outcome in outcomes]
    figures = {
        name: sum(getattr(tally, name) for tally in tallies)
        for name in (
            "completed",
            "failed",
            "never_ran",
            "requests",
            "runs",
            "resent",
            "attempts",
            "rule_broken",
        )
    }
    return msgspec.convert(
        {
            **about,
            **figures,
            "rounds": len(outcomes),
            "faults": {fault.value: faults[fault] for fault in Fault},
            "batches": dict(batches),
            "swept": sum(outcome.swept for outcome in outcomes),
            "longest_calm": round(max((outcome.calm for outcome in outcomes), default=0.0), 1),
            "lost": kinds[FindingKind.LOST],
            "doubled": kinds[FindingKind.DOUBLED],
            "wrong": kinds[FindingKind.WRONG],
            "findings": findings,
        },
        ChaosResults,
    )


def reported(outcome: RoundOutcome) -> str:
    """Summarize one round for the terminal."""
    tally, findings = outcome.tally, outcome.findings
    lines = [
        f"round {outcome.schedule.round}: {outcome.faults.total()} faults, {tally.batches.total()} batches,"
        f" {tally.completed:,} completed, {tally.failed:,} failed, {tally.never_ran:,} never ran,"
        f" all ended {outcome.calm:.1f} s after the last fault; {len(findings)} findings"
    ]
    return "\n".join([*lines, *(f"  {finding}" for finding in findings)])


def summary(results: ChaosResults) -> str:
    faults, batches = sum(results.faults.values()), sum(results.batches.values())
    return (
        f"{results.rounds} rounds, {faults} faults, {batches} batches, {results.finished:,} items finished:"
        f" lost {results.lost}, doubled {results.doubled}, wrong {results.wrong}"
    )


def save(results: ChaosResults, page: Path) -> None:
    """Write the page, and its data in a JSON file of the same name."""
    page.with_suffix(".json").write_bytes(msgspec.json.format(msgspec.json.encode(results)) + b"\n")
    page.write_text(_page(results))


def _page(results: ChaosResults) -> str:
    about = {
        "date": results.date,
        "command": f"`{results.command}`",
        "seed": str(results.seed),
        **results.machine,
        "versions": ", ".join(f"{name} {number}" for name, number in results.versions.items()),
    }
    outcome = {
        "rounds": f"{results.rounds:,}",
        "faults": f"{sum(results.faults.values()):,}",
        "batches": ", ".join(f"{count:,} {status}" for status, count in sorted(results.batches.items())),
        "items finished": f"{results.finished:,}",
        "of these completed": f"{results.completed:,}",
        "of these failed": f"{results.failed:,}",
        "items that never ran (cancelled, expired)": f"{results.never_ran:,}",
        "**lost**": f"**{results.lost}**",
        "**doubled**": f"**{results.doubled}**",
        "**wrong otherwise**": f"**{results.wrong}**",
        "requests that the upstream received": f"{results.requests:,}",
        "of these sent again under the same key": f"{results.resent:,}",
        "keys run": f"{results.runs:,}",
        "second and later attempts": f"{results.attempts:,}",
        "keys that the upstream ran again, against its own rule": f"{results.rule_broken:,}",
        "objects that killed finalizers left and the sweep removed": f"{results.swept:,}",
        "longest time from the last fault to the end of every batch": f"{results.longest_calm:g} s",
    }
    findings = "".join(f"- {finding}\n" for finding in results.findings)
    return (
        "\n\n".join(
            [
                "# Chaos",
                "The command below wrote this page."
                " [What it does](#what-it-does) and [how to run it](#run-it) follow the results.",
                _table(["", ""], about.items()),
                "## Results",
                _table(["", ""], outcome.items()),
                *(["### Findings", findings.rstrip()] if findings else []),
                "## Faults",
                "Only faults that had an effect are counted: a dead worker cannot be killed.",
                _table(["fault", "times"], ((name, f"{count:,}") for name, count in results.faults.items())),
                _ABOUT.format(
                    storm=STORM, lease=LEASE, timeout=TIMEOUT, attempts=ATTEMPTS, seed=results.seed
                ).strip(),
            ]
        )
        + "\n"
    )


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    cells = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


_ABOUT = """
## What it does

Chaos runs real workers, a real API server and real clients on a real PostgreSQL with durable settings. Each
worker has its own TCP proxy; the server and the clients share one. Half of the clients create batches
directly, as `batchline submit` does. The other half use `batchline serve` with OpenAI's official client.
A third of the batches runs in steps.
Half of the workers run a Python app with three stages (`chaos/pipeline_app.py`). Its clients submit through
the Python library, in transactions of their own. Some handlers ask for another attempt after they have
emitted, and some fail.
The upstream supports `Idempotency-Key`s, records every request in a ledger, and fails on command.

A round is a storm of {storm:g} seconds and a calm. In the storm a nemesis injects faults. The seed and the
number of the round determine every fault, its time and its target. Then everything is repaired, and every
batch must end by itself. The workers' lease is {lease:g} s. A request may take {timeout:g} s, and a line has
{attempts} attempts.

- **A full object store** is a limit on the size of files (`RLIMIT_FSIZE`) that is set on the running
  processes: writes fail half-way with a real system error. For an object store that is *away*, something
  else replaces its folder.
- **Other clocks**: a worker whose wall clock is up to two hours off, and whose steady clock runs up to 5 %
  fast or slow (`python -m chaos.shifted`).
- **Half-open connections**: no data passes, and neither side is notified, not even when the other side
  closes. At the end of the fault the client sees a reset. The server sees nothing before the round is over,
  as if its client's machine were gone. In half of the cases new connections are swallowed as well.
- **Late, and twice**: an answer that takes from less than half to more than the request's time limit,
  written twice.
- **A key run again**: the upstream forgets that it has run a key. That is its own fault, and counted
  separately.
- **One batch cannot be finalized**: something else is where its files should go.
- **A read-only moment**: `default_transaction_read_only` for some seconds. At its beginning and at its end
  every connection is closed, as in a failover.
- **A full database disk**: the database is on a tmpfs, which is shrunk to its used size. If none can be
  mounted (this needs root), this fault is not injected.
- **Oversized answers**: a few answers of 2 to 70 MiB. The largest exceed Batchline's limit; only their
  lines may fail, for that reason.
- **A flooding tenant** creates dozens of small batches, while clients request lists from the server as fast
  as it answers.
- **A starving upstream** is a second upstream with its own batch. It answers 429 to everything or takes 70 %
  of the time limit.

## What it checks

After each round, from outside (`chaos/checker.py`) and by `batchline doctor`:

- Each line of each batch has exactly one outcome, in the output or in the error file, in input order.
- Each answer is the upstream's answer to that line, under a key that its ledger shows as run. Each error is
  one that the upstream gave, or a request that it did not answer.
- Counters and tokens of the batch agree with its files, and the server's answers agree with both.
- No key ran twice, except where the upstream broke its rule. None was sent with another body. No line was
  sent under a new key unless the attempt before had failed at the upstream.
- Each item of a pipeline has one result, its own. Each emission of an attempt that completed is there once,
  and nothing else was emitted.
- Each request for a batch created one batch, although clients repeat it when an answer is lost. A batch is
  cancelled only if a client requested it, always if that was confirmed, and expired only if its window was
  short.
- Every batch ended and every event was delivered. No span, no lease that holds one and no unknown object is
  left, once the sweep has removed what killed finalizers left half-written.
- No process ended with a traceback.

`tests/system/test_chaos.py` plants faults to prove that the checker finds them.

## Run it

```console
$ make chaos                          # an hour
$ make chaos MINUTES=5 SEED=7
$ .venv/bin/python -m chaos --minutes 2 --workers 6
$ .venv/bin/python -m chaos --only full-database --only kill-worker    # these faults alone
```

A run prints its seed, and the schedule of each round before the round begins. If it finds a fault, it ends
with 1, keeps its folder with the logs of all processes, and prints the command for that round:

```console
$ .venv/bin/python -m chaos --seed {seed} --round 3
$ .venv/bin/python -m chaos --seed {seed} --round 3 --schedule    # only print it
```

The same seed, round and number of workers give the same schedule on every machine. The timing of the
processes in between varies, so a rare finding may need several tries.
"""
