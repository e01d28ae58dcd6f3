"""`batchline ui` as a real process."""

import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.processes import start
from tests.support.waiting import LIMIT


@dataclass(frozen=True)
class DisplayedUi:
    address: str

    @property
    def url(self) -> str:
        return self.address.partition("/signin")[0]


@contextmanager
def displayed(database: str, folder: Path, *options: str, **variables: str) -> Iterator[DisplayedUi]:
    location = ("--database", database, "--data-dir", str(folder / "data"))
    process = start("ui", "--no-browser", *location, *options, **variables)
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        said = process.stdout.readline()
        found = re.fullmatch(r"open (http://127\.0\.0\.1:\d+/signin\?token=\S{43})\n", said)
        assert found is not None, said + process.stderr.read()
        yield DisplayedUi(found[1])
    finally:
        process.send_signal(signal.SIGINT)
        code = process.wait(LIMIT)
        process.stdout.close()
        process.stderr.close()
    assert code == 0
