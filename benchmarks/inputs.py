"""Inputs of the contests: lines in the database, lines in a file, results. All have the same payload."""

from collections.abc import Iterable
from pathlib import Path
from uuid import UUID

import msgspec
from psycopg import sql

from batchline.model import DEFAULT_TENANT, Batch, RunSettings, Usage
from batchline.model.ids import new_id
from batchline.store import batches
from batchline.store.batches import NewBatch
from batchline.store.session import Session
from benchmarks.server import execute

MODEL = "sim-small"
URL = "/v1/chat/completions"
WINDOW = 86_400.0

# A body of about 300 bytes in SQL, for line `g` of generate_series.
BODY = sql.SQL(
    """'{"model":"sim-small","messages":[{"role":"user","content":"Line ' || g || ': ' """
    """|| repeat('what is said here matters little ', 7) || '"}]}'"""
)

# A finished output line of about 400 bytes.
OUTPUT = (
    b'{"id":"batch_req_0198c0de0198c0de0198c0de0198c0de_123456","custom_id":"line-123456","response":'
    b'{"status_code":200,"request_id":"req_0123456789abcdef","body":{"id":"chatcmpl-0123456789","object":'
    b'"chat.completion","model":"sim-small","choices":[{"index":0,"message":{"role":"assistant","content":'
    b'"An answer of no importance."},"finish_reason":"stop"}],"usage":{"prompt_tokens":70,'
    b'"completion_tokens":6,"total_tokens":76}}},"error":null}'
)
USAGE = Usage(input_tokens=70, output_tokens=6)


def add_file(url: str, lines: int) -> UUID:
    """Add a file whose row has this number of lines, all in one lane, but no lines."""
    file_id = new_id()
    execute(
        url,
        sql.SQL("""
            WITH file AS (
                INSERT INTO batchline.files (id, tenant, purpose, filename, bytes, line_count)
                VALUES (%(id)s, %(tenant)s, 'batch', 'input.jsonl', 0, %(lines)s)
                RETURNING no
            )
            INSERT INTO batchline.file_lanes (file_no, lane_no, model, url, total)
            SELECT no, 0, %(model)s, %(url)s, %(lines)s FROM file
        """),
        {"id": file_id, "tenant": DEFAULT_TENANT, "lines": lines, "model": MODEL, "url": URL},
    )
    return file_id


def fill_file(url: str, lines: int) -> UUID:
    """Add a file and generate its lines in the database; ingest is measured elsewhere."""
    file_id = add_file(url, lines)
    execute(
        url,
        sql.SQL("""
            INSERT INTO batchline.lines (file_no, lane_no, ordinal, line_no, custom_id, body)
            SELECT no, 0, g, g + 1, 'line-' || g, {body}
            FROM batchline.files CROSS JOIN generate_series(0, line_count - 1) AS g
            WHERE id = %(id)s
        """).format(body=BODY),
        {"id": file_id},
    )
    execute(url, sql.SQL("VACUUM ANALYZE batchline.lines"))
    return file_id


async def a_batch(session: Session, file_id: UUID, upstream: str | None = None) -> Batch:
    settings = RunSettings(upstream=upstream)
    return await batches.create(session, NewBatch(new_id(), DEFAULT_TENANT, file_id, "24h", WINDOW, settings))


def write_jsonl(path: Path, *, lines: int, line_bytes: int = 500, first: int = 0) -> Path:
    """Write an input file; every line has about `line_bytes` bytes. Lines are numbered from `first`."""
    line = (
        '{{"custom_id":"line-{nth:08}","method":"POST","url":"' + URL + '","body":{{"model":"' + MODEL + '",'
        '"messages":[{{"role":"user","content":"Line {nth:08}: {words}"}}]}}}}\n'
    )
    words = "what is said here matters little "
    room = line_bytes - len(line.format(nth=0, words=""))
    words = (words * (room // len(words) + 1))[:room]
    with path.open("w") as file:
        file.writelines(line.format(nth=nth, words=words) for nth in range(first, first + lines))
    return path


def write_chats(path: Path, prompts: Iterable[str], *, model: str, max_tokens: int) -> Path:
    """Write an input file with a chat for each prompt."""
    with path.open("wb") as file:
        for nth, prompt in enumerate(prompts):
            message = {"role": "user", "content": prompt}
            body = {"model": model, "messages": [message], "max_tokens": max_tokens, "temperature": 0}
            line = {"custom_id": f"line-{nth:08}", "method": "POST", "url": URL, "body": body}
            file.write(msgspec.json.encode(line) + b"\n")
    return path
