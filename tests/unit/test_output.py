"""Output lines: whatever the upstream sent comes back out, on one line."""

import json
from typing import Any, cast
from uuid import UUID

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from batchline.batches.output import NotJson, answered_line, as_json, failed_line, read_answer, usage_in
from batchline.model import NO_USAGE, Claim, Item, RunSettings, Usage

BATCH = UUID("0198c0de-0000-7000-8000-000000000001")

# All that UTF-8 can say: no lone surrogates.
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
NUMBER = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
ANY_JSON = st.recursive(
    st.none() | st.booleans() | NUMBER | TEXT, lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner)
)


def an_item(custom_id: str = "a", line_no: int = 7) -> Item:
    claim = Claim(1, 1, BATCH, 1, None, 1, "/v1/x", "m", "m", 9.0, RunSettings())
    return Item(claim, line_no - 1, line_no, custom_id.encode(), b"{}")


def read(line: bytes) -> dict[str, Any]:
    assert not set(line) & set(range(32)), f"a raw control character in {line!r}"
    strict = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
    assert list(strict) == ["id", "custom_id", "response", "error"]
    return cast(dict[str, Any], json.loads(line.decode()))


# --- Lines -------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(TEXT, TEXT, ANY_JSON, st.sampled_from([None, 2, "\t"]), st.booleans())
@example('\u2028\x00\x7f"\\/', "\r\n", {"a": "\n"}, "\t", True)
def test_an_answer_is_returned_unchanged(
    custom_id: str, request_id: str, answer: object, indent: str | int | None, ascii_only: bool
) -> None:
    sent = json.dumps(answer, indent=indent, ensure_ascii=ascii_only).encode()
    body, _ = read_answer(sent)
    assert read(answered_line(an_item(custom_id), 200, request_id, body)) == {
        "id": f"batch_req_{BATCH.hex}_7",
        "custom_id": custom_id,
        "response": {"status_code": 200, "request_id": request_id, "body": answer},
        "error": None,
    }


@settings(deadline=None)
@given(TEXT, TEXT, TEXT)
def test_a_failure_has_its_code_and_message(custom_id: str, code: str, message: str) -> None:
    assert read(failed_line(an_item(custom_id), code, message)) == {
        "id": f"batch_req_{BATCH.hex}_7",
        "custom_id": custom_id,
        "response": None,
        "error": {"code": code, "message": message},
    }


def test_the_bytes_of_an_answer_are_not_touched() -> None:
    sent = b'{"a": 1.00, "b":12345678901234567890123, "c" : "\\u00e9\\/\xc3\xa9", "a":2 }'
    assert read_answer(sent)[0] == sent


def test_pretty_printing_is_undone_and_nothing_else() -> None:
    sent = b'{\n\t"a": 1.00,\r\n  "b": ["\\n x", 12345678901234567890123, 1e400]\n}\n'
    assert read_answer(sent)[0] == b'{"a":1.00,"b":["\\n x",12345678901234567890123,1e400]}'


@settings(deadline=None)
@given(st.binary())
@example(b"<html>\r\n\x00</html>")
@example(b"\xff\xfe{}")
@example(b"[" * 100_000)
def test_any_error_body_is_written_as_one_line(body: bytes) -> None:
    reported = read(answered_line(an_item(), 500, "r", as_json(body)))["response"]["body"]
    try:
        expected = msgspec.json.decode(body.decode())
    except (ValueError, msgspec.DecodeError, RecursionError):
        expected = body[: 64 * 1024].decode("utf-8", "replace")
    assert reported == expected


def test_an_error_page_is_cut() -> None:
    assert json.loads(as_json(b"x" * 1_000_000)) == "x" * 64 * 1024


# --- What is no answer -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"<html>",
        b'{"a":',
        b'{"a": 1}}',
        b'{"a": NaN}',
        b'{"a": -Infinity}',
        b'{"a": "\n"}',
        b'{"a": "\x00"}',
        b'{"a": "\xff"}',
        b'{"\xed\xa0\x80": 1}',
        b'"\xc3',
        b"\xef\xbb\xbf{}",
        b'{"a": "\\ud8zz"}',
        b"[" * 100_000 + b"]" * 100_000,
        b'{"usage": {"prompt_tokens": "x"}, "a": ',
        b'{"usage": 1, "a": "\xff"}',
    ],
)
def test_an_answer_must_be_json_in_utf8(body: bytes) -> None:
    with pytest.raises(NotJson):
        read_answer(body)


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        (rb'"\ud83d"', "\ufffd"),
        (rb'"\uDC00x"', "\ufffdx"),
        (rb'"\ud83d\ud83d\ude00"', "\ufffd😀"),
        (rb'"\ud83d\u0041"', "\ufffdA"),
        (rb'"\\ud83d \ud83d"', "\\ud83d \ufffd"),
        (rb'"\\\ud83d"', "\\\ufffd"),
        (rb'"\ud83d\n\"\ude00"', '\ufffd\n"\ufffd'),
    ],
)
def test_half_of_a_surrogate_pair_does_not_lose_the_answer(sent: bytes, kept: str) -> None:
    assert json.loads(read_answer(sent)[0]) == kept


@settings(deadline=None)
@given(st.lists(st.integers(0xD7FE, 0xE001) | st.sampled_from([0x41, 0x5C, 0x22, 0x0A])))
def test_any_mixture_of_surrogates_is_read_as_utf16_reads_it(units: list[int]) -> None:
    sent = b'"%b"' % b"".join(b"\\u%04x" % unit for unit in units)
    utf16 = b"".join(unit.to_bytes(2, "little") for unit in units)
    assert json.loads(read_answer(sent)[0]) == utf16.decode("utf-16-le", "surrogatepass").encode(
        "utf-8", "replace"
    ).decode().replace("?", "\ufffd")


# --- Usage -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        pytest.param(
            {
                "prompt_tokens": 1,
                "completion_tokens": 2,
                "total_tokens": 3,
                "prompt_tokens_details": {"cached_tokens": 4, "audio_tokens": 0},
                "completion_tokens_details": {"reasoning_tokens": 5},
            },
            Usage(1, 4, 2, 5),
            id="chat",
        ),
        pytest.param(
            {
                "input_tokens": 1,
                "input_tokens_details": {"cached_tokens": 4},
                "output_tokens": 2,
                "output_tokens_details": {"reasoning_tokens": 5},
                "total_tokens": 3,
            },
            Usage(1, 4, 2, 5),
            id="responses",
        ),
        pytest.param({"prompt_tokens": 8, "total_tokens": 8}, Usage(8, 0, 0, 0), id="embeddings"),
        pytest.param(
            {"prompt_tokens": 8, "completion_tokens": None, "prompt_tokens_details": None},
            Usage(8),
            id="vLLM",
        ),
        # /v1/messages: the input is counted apart from what was cached.
        (
            {
                "input_tokens": 5,
                "cache_creation_input_tokens": 20,
                "cache_read_input_tokens": 100,
                "output_tokens": 7,
            },
            Usage(125, 100, 7, 0),
        ),
        # Rerankers.
        ({"total_tokens": 42}, Usage(42, 0, 0, 0)),
        ({"prompt_tokens": 3, "total_tokens": "strange", "completion_tokens": 4}, Usage(3, 0, 4, 0)),
    ],
)
def test_usage_is_read_in_either_dialect(usage: object, expected: Usage) -> None:
    assert read_answer(json.dumps({"id": "x", "usage": usage, "model": "m"}).encode())[1] == expected


@settings(deadline=None)
@given(
    ANY_JSON
    | st.dictionaries(
        st.sampled_from(["prompt_tokens", "output_tokens", "prompt_tokens_details", "completion_tokens"]),
        ANY_JSON,
    )
)
@example({"prompt_tokens": -1})
@example({"prompt_tokens": 1.5})
@example({"prompt_tokens": "12"})
@example({"prompt_tokens": True})
@example({"prompt_tokens": 2**31})
@example({"prompt_tokens": 5, "completion_tokens": 10**400})
@example({"prompt_tokens_details": {"cached_tokens": []}})
@example(None)
def test_a_strange_usage_never_costs_the_answer(usage: object) -> None:
    sent = json.dumps({"usage": usage, "x": 1}).encode()
    body, counted = read_answer(sent)
    assert body == sent
    # As the database stores it.
    assert all(0 <= count < 2**31 for count in msgspec.structs.astuple(counted))


@pytest.mark.parametrize(
    "body", [b"[]", b"1", b'"usage"', b"null", b"{}", b'{"usage": null}', b'{"usage": []}']
)
def test_an_answer_without_usage_is_an_answer(body: bytes) -> None:
    assert read_answer(body) == (body, NO_USAGE)


def test_the_usage_of_an_answer_that_is_no_success_is_read() -> None:
    assert usage_in(b'{"error": {}, "usage": {"prompt_tokens": 7, "completion_tokens": 2}}') == Usage(7, 0, 2)
    for body in (b'{"error": {}}', b'not JSON "usage"', b'{"usage": {"prompt_tokens": -1}}'):
        assert usage_in(body) == NO_USAGE
