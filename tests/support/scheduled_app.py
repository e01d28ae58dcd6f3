"""A worker of an app with a schedule for every second, in a process with wrong clocks.

python -m tests.support.scheduled_app SECONDS RATE DATABASE FOLDER
"""

import sys
from datetime import datetime

from chaos.shifted import shift


def main() -> None:
    seconds, rate, database, folder = sys.argv[1:]
    shift(float(seconds), float(rate))
    # Only now, so that all of it sees the wrong time.
    from batchline import Batchline

    app = Batchline(database, data_dir=folder)

    @app.operation
    async def note(time: str) -> str:
        return time

    @app.schedule("* * * * * *", note, timezone="Europe/Berlin", catch_up=True)
    async def often(at: datetime) -> list[str]:
        return [at.isoformat()]

    app.worker(lease=5).run()


if __name__ == "__main__":
    main()
