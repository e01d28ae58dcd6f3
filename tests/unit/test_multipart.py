"""A form that streams in: fields in any order, the file in blocks, and all that a client decides limited."""

import asyncio
from collections.abc import AsyncIterator, Iterable

import pytest
from starlette.requests import ClientDisconnect

from batchline.api.errors import ApiError
from batchline.api.openai import multipart
from batchline.api.openai.multipart import Form, clean_filename

BOUNDARY = "frontier"
TYPE = f"multipart/form-data; boundary={BOUNDARY}"


def field(name: str, value: bytes | str) -> bytes:
    content = value if isinstance(value, bytes) else value.encode()
    return b'--frontier\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n' % (name.encode(), content)


def file(content: bytes, filename: str = "in.jsonl", name: str = "file") -> bytes:
    return (
        (
            f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"; filename="{filename}"\r\n'
            "Content-Type: application/jsonl\r\n\r\n"
        ).encode()
        + content
        + b"\r\n"
    )


END = b"--frontier--\r\n"


async def _in_blocks(body: bytes, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(body), size):
        yield body[start : start + size]


async def _read(form: Form) -> tuple[dict[str, str], str, bytes]:
    part = await form.reach_file()
    content = b"".join([block async for block in form.content()])
    await form.rest()
    return form.fields, part.filename, content


def read(
    body: bytes, *, block: int = 7, content_type: str | None = TYPE, maximum: int = 10**6
) -> tuple[dict[str, str], str, bytes]:
    return asyncio.run(_read(Form(content_type, _in_blocks(body, block), file="file", maximum=maximum)))


def refused(body: bytes, **options: object) -> ApiError:
    with pytest.raises(ApiError) as caught:
        read(body, **options)  # type: ignore[arg-type]
    return caught.value


@pytest.mark.parametrize("block", [1, 2, 3, 61, 10_000])
def test_fields_may_come_before_and_after_the_file(block: int) -> None:
    content = b'{"a": 1}\r\n--front\r\n--frontie\n\r\n'
    body = field("purpose", "batch") + file(content) + field("expires_after[seconds]", "3600") + END

    assert read(body, block=block) == (
        {"purpose": "batch", "expires_after[seconds]": "3600"},
        "in.jsonl",
        content,
    )


def test_an_empty_file_is_a_file() -> None:
    assert read(file(b"") + END) == ({}, "in.jsonl", b"")


def test_a_form_without_a_file_is_refused_by_name() -> None:
    error = refused(field("purpose", "batch") + END)

    assert (error.status, error.code, error.param) == (400, "missing_required_parameter", "file")


@pytest.mark.parametrize(
    "body",
    [
        file(b"x")[:-4],
        file(b"x"),
        field("purpose", "batch") + file(b"x")[:40],
        file(b"x") + b"--frontier-",
        b"",
    ],
)
def test_a_body_that_is_cut_off_is_refused(body: bytes) -> None:
    assert refused(body).status == 400


@pytest.mark.parametrize(
    ("content_type", "status"),
    [
        (None, 415),
        ("application/json", 415),
        ("application/x-www-form-urlencoded", 415),
        ("multipart/mixed; boundary=frontier", 415),
        ("multipart/form-data", 400),
        ("multipart/form-data; boundary=", 400),
        (f"multipart/form-data; boundary={'x' * 71}", 400),
    ],
)
def test_another_content_type_is_refused(content_type: str | None, status: int) -> None:
    error = refused(file(b"x") + END, content_type=content_type)

    assert (error.status, error.param) == (status, "Content-Type")


@pytest.mark.parametrize(
    "body",
    [
        b"nothing of the kind",
        b"--frontier\r\nContent-Disposition: form-data\r\n\r\nx\r\n" + END,
        b"--frontier\r\n\r\nx\r\n" + END,
        b'--frontier\r\nContent-Disposition: attachment; name="file"\r\n\r\nx\r\n' + END,
        file(b"x", name="other") + END,
        file(b"x") + file(b"y") + END,
        field("purpose", "batch") + field("purpose", "vision") + file(b"x") + END,
        field("purpose", b"\xff") + file(b"x") + END,
        b"--frontier\r\nbad header\r\n\r\nx\r\n" + END,
    ],
    ids=list(range(9)),
)
def test_an_invalid_form_is_refused(body: bytes) -> None:
    assert refused(body).status == 400


@pytest.mark.parametrize(
    "body",
    [
        b"".join(field(f"f{n}", "x") for n in range(1000)),
        field("purpose", b"x" * 100_000),
        field("x" * 10_000, "y"),
        b"--frontier\r\n" + b"A: b\r\n" * 1000 + b"\r\n",
        b"--frontier\r\nA: " + b"b" * 100_000,
        b"--frontier\r\n" + b"A" * 100_000,
        b"\r\n" * 2_000_000,
        file(b"x") + END + b"-" * 4_000_000,
    ],
    ids=["parts", "field", "name", "headers", "header value", "header name", "preamble", "epilogue"],
)
async def test_an_oversized_form_is_refused_before_it_is_read_whole(body: bytes) -> None:
    read_so_far = 0

    async def counted() -> AsyncIterator[bytes]:
        nonlocal read_so_far
        async for block in _in_blocks(body, 10_000):
            read_so_far += len(block)
            yield block

    with pytest.raises(ApiError) as caught:
        await _read(Form(TYPE, counted(), file="file", maximum=1000))

    assert caught.value.status in (400, 413)
    assert read_so_far < 2_200_000


def test_a_body_beyond_the_limit_is_not_read_to_its_end() -> None:
    error = refused(file(b"x" * 3_000_000) + END, maximum=1000, block=100_000)

    assert (error.status, error.code, error.headers) == (413, "file_too_large", {"x-should-retry": "false"})


def test_a_body_that_is_announced_as_too_large_is_not_read_at_all() -> None:
    with pytest.raises(ApiError) as caught:
        Form(TYPE, _in_blocks(b"", 1), file="file", maximum=1000, announced="3000000")
    assert caught.value.status == 413


async def test_a_silent_client_times_out() -> None:
    async def silent() -> AsyncIterator[bytes]:
        yield file(b"x")
        await asyncio.Event().wait()

    with pytest.raises(ApiError) as caught:
        await _read(Form(TYPE, silent(), file="file", maximum=1000, silence=0.05))
    assert caught.value.status == 408


async def test_a_client_that_trickles_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multipart, "_PATIENCE", 0.02)

    async def trickle() -> AsyncIterator[bytes]:
        for byte in file(b"x" * 1000):
            await asyncio.sleep(0.002)
            yield bytes([byte])

    with pytest.raises(ApiError) as caught:
        await _read(Form(TYPE, trickle(), file="file", maximum=1000))
    assert (caught.value.status, caught.value.code) == (408, "timeout")


async def test_a_client_that_disconnects_is_not_a_server_error() -> None:
    async def leaving() -> AsyncIterator[bytes]:
        yield file(b"x")
        raise ClientDisconnect

    with pytest.raises(ApiError) as caught:
        await _read(Form(TYPE, leaving(), file="file", maximum=1000))
    assert caught.value.code == "disconnected"


def _cases() -> Iterable[tuple[str, str]]:
    yield "in.jsonl", "in.jsonl"
    yield "../../etc/passwd", "passwd"
    yield "C:\\Users\\me\\in.jsonl", "in.jsonl"
    yield "a/b/", "upload"
    yield "", "upload"
    yield "..", "upload"
    yield "a\x00b\r\nc\x1b[31m.jsonl", "abc[31m.jsonl"
    yield "\u202elnosj.exe", "lnosj.exe"
    yield "größe 大.jsonl", "größe 大.jsonl"


@pytest.mark.parametrize(("given", "kept"), list(_cases()))
def test_of_a_filename_only_a_harmless_name_is_kept(given: str, kept: str) -> None:
    assert clean_filename(given) == kept


def test_a_long_filename_keeps_its_ending() -> None:
    kept = clean_filename("x" * 5000 + ".jsonl")

    assert len(kept) == 255
    assert kept.endswith(".jsonl")
