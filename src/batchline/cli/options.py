"""Options that many commands share, and exit codes."""

from enum import IntEnum
from pathlib import Path
from typing import Annotated

import typer


class Exit(IntEnum):
    OK = 0
    SOME_FAILED = 1
    BAD_INPUT = 2
    INTERRUPTED = 130


Database = Annotated[
    str | None,
    typer.Option(
        "--database",
        envvar="BATCHLINE_DATABASE_URL",
        metavar="URL",
        help="PostgreSQL 15 to 18. Without it, one of your own is started under the data folder.",
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        envvar="BATCHLINE_DATA_DIR",
        metavar="DIR",
        help="Where the embedded PostgreSQL and output files live. Default: the platform's data folder.",
    ),
]
Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        envvar="BATCHLINE_CONFIG",
        metavar="FILE",
        help="Upstreams and limits. Default: batchline.toml in this folder, if it is there.",
    ),
]
ObjectsUrl = Annotated[
    str | None,
    typer.Option(
        "--objects",
        envvar="BATCHLINE_OBJECTS",
        metavar="URL",
        help="Where files are kept, such as s3://bucket/prefix. Default: a folder under the data folder.",
    ),
]
Force = Annotated[
    bool, typer.Option("--force", help="Replace files that Batchline did not write, or that were changed.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
BatchId = Annotated[str, typer.Argument(metavar="ID", help="A batch, as `batchline list` shows it.")]
Inputs = Annotated[list[Path], typer.Argument(metavar="INPUT.jsonl…", help="Files of requests, one a line.")]
Limit = Annotated[int, typer.Option("--limit", min=1, max=1000)]
OnlyTenant = Annotated[str | None, typer.Option("--tenant", metavar="T", help="Of this tenant only.")]
Concurrency = Annotated[
    int, typer.Option("--concurrency", "-c", min=1, max=20_000, help="Requests in flight at once.")
]
Upstream = Annotated[
    str | None,
    typer.Option(
        "--upstream",
        envvar="BATCHLINE_UPSTREAM",
        metavar="URL",
        help="The model server, such as http://127.0.0.1:8000/v1",
    ),
]
ApiKeyEnv = Annotated[
    str | None,
    typer.Option(
        "--api-key-env", metavar="NAME", help="The environment variable that holds the upstream's API key."
    ),
]
MaxAttempts = Annotated[
    int, typer.Option("--max-attempts", min=1, max=100, help="How often a line is tried in all.")
]
Timeout = Annotated[
    float, typer.Option("--timeout", min=0.1, metavar="S", help="Seconds that one request may take.")
]
Window = Annotated[
    str, typer.Option("--window", help="What is not done after this long expires: 24h, 90m, 7d.")
]
