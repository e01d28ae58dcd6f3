"""What is taken from the input, what is refused and why, and that no cut between blocks changes either."""

import json
import tracemalloc
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchline.files.parsing import Code, LineColumns, LineError, Reader, ReadingRules
from batchline.model.endpoints import Endpoints
from tests.support.parsing import read

CHAT = "/v1/chat/completions"
MIB = 2**20
BODY = b'{"model":"m"}'


def line(
    custom_id: bytes = b'"a"',
    method: bytes = b'"POST"',
    url: bytes = b'"/v1/chat/completions"',
    body: bytes = BODY,
) -> bytes:
    return b'{"custom_id":%b,"method":%b,"url":%b,"body":%b}' % (custom_id, method, url, body)


def rows(taken: Sequence[LineColumns]) -> list[tuple[int, int, int, bytes, bytes]]:
    return [
        row
        for lines in taken
        for row in zip(
            lines.lane_nos, lines.ordinals, lines.line_nos, lines.custom_ids, lines.bodies, strict=True
        )
    ]


def bodies(*contents: bytes) -> list[bytes]:
    reader, taken = read(*contents)
    assert not reader.errors(), f"expected every line to be taken, got {reader.errors()}"
    return [row[4] for row in rows(taken)]


def only_error(content: bytes, rules: ReadingRules | None = None) -> LineError:
    errors = read(content, rules=rules)[0].errors()
    assert len(errors) == 1, f"expected one error, got {errors}"
    return errors[0]


NOT_VALID = [
    pytest.param(b"hello", Code.INVALID_JSON_LINE, None, id="not JSON"),
    pytest.param(b"[1]", Code.INVALID_JSON_LINE, None, id="not an object"),
    pytest.param(line()[:-1], Code.INVALID_JSON_LINE, None, id="cut off"),
    pytest.param(line() + line(), Code.INVALID_JSON_LINE, None, id="two on one line"),
    pytest.param(b"\0\0\0", Code.INVALID_JSON_LINE, None, id="NUL bytes"),
    pytest.param(line(custom_id=b'"a\0b"'), Code.INVALID_JSON_LINE, None, id="NUL byte in a string"),
    pytest.param(line(body=b'{"model":"m","n":NaN}'), Code.INVALID_JSON_LINE, None, id="NaN"),
    pytest.param(line(body=b'{"model":"m","n":01}'), Code.INVALID_JSON_LINE, None, id="leading zero"),
    pytest.param(line(body=b'{"model":"m","s":"\\x"}'), Code.INVALID_JSON_LINE, None, id="unknown escape"),
    pytest.param(
        line(custom_id=b'"\\ud800"'), Code.INVALID_JSON_LINE, None, id="lone surrogate in custom_id"
    ),
    pytest.param(
        line(body=b'{"model":"\\udc00"}'), Code.INVALID_JSON_LINE, None, id="lone surrogate in body"
    ),
    pytest.param(b"\xff\xfe", Code.INVALID_UTF8, None, id="not UTF-8"),
    pytest.param(line(custom_id=b'"\xe4"'), Code.INVALID_UTF8, None, id="Latin-1 in custom_id"),
    pytest.param(
        line(body=b'{"model":"m","x":"\xff"}'), Code.INVALID_UTF8, None, id="not UTF-8 deep in the body"
    ),
    pytest.param(line(body=b'{"model":"m","x":"\xed\xa0\x80"}'), Code.INVALID_UTF8, None, id="raw surrogate"),
    pytest.param(
        b'{"method":"POST","url":"%b","body":{}}' % CHAT.encode(),
        Code.MISSING_REQUIRED_PARAMETER,
        "custom_id",
        id="no custom_id",
    ),
    pytest.param(b'{"custom_id":"a"}', Code.MISSING_REQUIRED_PARAMETER, "method", id="no method"),
    pytest.param(b'{"custom_id":"a","method":"POST"}', Code.MISSING_REQUIRED_PARAMETER, "url", id="no url"),
    pytest.param(line().replace(b'"body"', b'"b"'), Code.MISSING_REQUIRED_PARAMETER, "body", id="no body"),
    pytest.param(line(body=b"[]"), Code.MISSING_REQUIRED_PARAMETER, "body", id="body is a list"),
    pytest.param(line(body=b"null"), Code.MISSING_REQUIRED_PARAMETER, "body", id="body is null"),
    pytest.param(line(body=b"{}"), Code.MISSING_REQUIRED_PARAMETER, "body.model", id="no model"),
    pytest.param(line(body=b'{"model":""}'), Code.MISSING_REQUIRED_PARAMETER, "body.model", id="empty model"),
    pytest.param(
        line(body=b'{"model":4}'), Code.MISSING_REQUIRED_PARAMETER, "body.model", id="model is a number"
    ),
    pytest.param(line(method=b'"GET"'), Code.INVALID_METHOD, "method", id="GET"),
    pytest.param(line(method=b"1"), Code.INVALID_METHOD, "method", id="method is a number"),
    pytest.param(line(url=b'"/v1/other"'), Code.INVALID_URL, "url", id="wrong url"),
    pytest.param(line(url=b'"https://h/v1/responses"'), Code.INVALID_URL, "url", id="absolute url"),
    pytest.param(line(url=b'"//h/v1/responses"'), Code.INVALID_URL, "url", id="url with a host"),
    pytest.param(line(url=b"null"), Code.INVALID_URL, "url", id="url is null"),
    pytest.param(line(custom_id=b"7"), Code.INVALID_CUSTOM_ID, "custom_id", id="custom_id is a number"),
    pytest.param(line(custom_id=b'""'), Code.INVALID_CUSTOM_ID, "custom_id", id="custom_id is empty"),
    pytest.param(
        line(custom_id=b'"%b"' % (b"x" * 513)), Code.INVALID_CUSTOM_ID, "custom_id", id="custom_id too long"
    ),
    pytest.param(
        line(custom_id=b'"a\\u0000"'), Code.INVALID_CUSTOM_ID, "custom_id", id="escaped NUL in custom_id"
    ),
    pytest.param(line(custom_id=b'"a\\n"'), Code.INVALID_CUSTOM_ID, "custom_id", id="line feed in custom_id"),
    pytest.param(
        line(custom_id=b'"\\u0085"'), Code.INVALID_CUSTOM_ID, "custom_id", id="C1 control in custom_id"
    ),
    pytest.param(line(body=b'{"model":"\\u0000"}'), Code.MODEL_NOT_FOUND, "body.model", id="NUL in model"),
    pytest.param(
        line(body=b'{"model":"%b"}' % (b"x" * 513)), Code.MODEL_NOT_FOUND, "body.model", id="endless model"
    ),
    pytest.param(
        line(body=b'{"model":"m","stream":true}'), Code.STREAM_NOT_SUPPORTED, "body.stream", id="stream"
    ),
]


@pytest.mark.parametrize(("content", "code", "param"), NOT_VALID)
def test_a_line_that_cannot_be_run_is_refused_with_its_code_number_and_parameter(
    content: bytes, code: Code, param: str | None
) -> None:
    reader, taken = read(line(b'"before"') + b"\n" + content + b"\n" + line(b'"after"'))
    assert [(e.code, e.line, e.param, e.source) for e in reader.errors()] == [(code, 2, param, "a")]
    assert [row[2] for row in rows(taken)] == [1, 3], "the lines around it are read all the same"


VALID = [
    pytest.param(line(custom_id=b'"%b"' % (b"x" * 512)), id="longest custom_id"),
    pytest.param(
        line(custom_id="👩‍🚀 Ünïcode".encode().join([b'"', b'"'])), id="emoji joined by a format character"
    ),
    pytest.param(line(custom_id=b'"\\ud83d\\ude80"'), id="surrogate pair"),
    pytest.param(line(body=b'{"model":"m","x":"\\u0000"}'), id="escaped NUL in the body"),
    pytest.param(line(body=b'{"model":"m","n":%b}' % (b"9" * 5000)), id="an integer of 5000 digits"),
    pytest.param(line(body=b'{"model":"m","n":1e999}'), id="a number beyond double precision"),
    pytest.param(line(body=b'{"model":"m","stream":false}'), id="stream false"),
    pytest.param(line(body=b'{"model":"m","stream":null}'), id="stream null"),
    pytest.param(
        line(body=b'{"stream":true,"stream":false,"model":"m"}'), id="the last of equal keys counts"
    ),
    pytest.param(line()[:-1] + b',"more":{"unknown":[1]}}', id="unknown fields"),
    pytest.param(b" \t" + line() + b" \t\r", id="white space around"),
]


@pytest.mark.parametrize("content", VALID)
def test_a_line_that_json_and_the_rules_allow_is_taken(content: bytes) -> None:
    assert len(bodies(content)) == 1


@pytest.mark.parametrize(
    "body",
    [
        b'{ "model" : "m",\t"x" : [ 1.50, 1E2, "\\u00e9\\/" ] }',
        '{"model":"m","x":"é 👩‍🚀","y":"\\u0000"}'.encode(),
        b'{"model":"m","n":%b}' % (b"9" * 100),
    ],
)
def test_a_body_is_kept_byte_for_byte(body: bytes) -> None:
    assert bodies(line(body=body)) == [body]
    assert bodies(b"\n" + line(body=body)) == [body], "also where a neighbour needs a closer look"


@pytest.mark.parametrize("depth", [10, 200])
def test_a_nested_body_is_taken(depth: int) -> None:
    nested = b'{"model":"m","x":' + b"[" * depth + b"]" * depth + b"}"
    assert bodies(line(body=nested)) == [nested]


@pytest.mark.parametrize("depth", [1_000, 100_000])
@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
def test_a_body_nested_a_thousand_deep_is_refused_as_a_line(depth: int, opening: bytes) -> None:
    error = only_error(
        line(b'"b"') + b"\n" + line(body=b'{"model":"m","x":' + opening * depth) + b"\n" + line()
    )
    assert (error.code, error.line) == (Code.INVALID_JSON_LINE, 2)


def test_half_of_a_surrogate_pair_is_named_as_the_reason() -> None:
    assert "surrogate" in only_error(line(body=b'{"model":"m","x":"cut \\ud83d"}')).message
    assert "surrogate" not in only_error(line(body=b'{"model":"m","x":"cut \\\\ud83d" oops}')).message


def test_an_endpoint_binds_every_line_to_it() -> None:
    rules = ReadingRules(endpoint="/v1/embeddings")
    assert only_error(line(), rules).code is Code.URL_MISMATCH
    assert only_error(line(url=b'"/v1/other"'), rules).code is Code.INVALID_URL
    assert not read(line(url=b'"/v1/embeddings"'), rules=rules)[0].errors()


def test_a_model_is_unknown_only_where_models_are_known() -> None:
    assert only_error(line(), ReadingRules(models=frozenset({"other"}))).code is Code.MODEL_NOT_FOUND
    assert not read(line(), rules=ReadingRules(models=frozenset({"m"})))[0].errors()


def test_urls_can_be_allowed_that_openai_does_not_have() -> None:
    own = line(url=b'"/v1/rerank"')
    assert not read(own, rules=ReadingRules(Endpoints(("/v1/rerank",))))[0].errors()


@pytest.mark.parametrize("content", [b"", b"\n\n\n", b" \r\n\t\n", b"\xef\xbb\xbf", b"\xef\xbb\xbf\r\n"])
def test_a_file_without_a_request_is_empty(content: bytes) -> None:
    error = only_error(content)
    assert (error.code, error.line, error.source) == (Code.EMPTY_FILE, None, "a")


def test_an_empty_source_beside_a_full_one_is_no_error() -> None:
    assert bodies(b"", line(), b"\n") == [BODY]


def test_line_numbers_are_those_of_the_editor() -> None:
    content = (
        b"\xef\xbb\xbf" + line() + b"\r\n\r\n" + b"oops\r\n" + b"   \r\n" + line() + b"\r\n\r\n" + b"oops"
    )
    reader, taken = read(content)
    assert [row[2] for row in rows(taken)] == [1, 5]
    assert [error.line for error in reader.errors()] == [3, 7]


def test_over_several_sources_numbers_run_on_and_errors_name_the_source() -> None:
    reader, taken = read(
        line() + b"\n\n" + line(), b"\xef\xbb\xbf" + line() + b"\noops\n", b"", b"oops", b"\n" + line()
    )
    assert [row[2] for row in rows(taken)] == [1, 3, 4, 8]
    assert [(error.source, error.line) for error in reader.errors()] == [("b", 2), ("d", 1)]


def test_a_byte_order_mark_is_skipped_only_at_the_start() -> None:
    assert only_error(line() + b"\n\xef\xbb\xbf" + line()).line == 2


def test_each_pair_of_model_and_url_is_a_lane_with_dense_ordinals() -> None:
    content = b"\n".join(
        line(url=b'"%b"' % url, body=b'{"model":"%b"}' % model)
        for model, url in [
            (b"x", b"/v1/embeddings"),
            (b"y", b"/v1/embeddings"),
            (b"x", b"/v1/responses"),
            (b"x", b"/v1/embeddings"),
            (b"y", b"/v1/embeddings"),
            (b"x", b"/v1/embeddings"),
        ]
    )
    reader, taken = read(content)
    assert [(lane.no, lane.model, lane.url, lane.total) for lane in reader.lanes] == [
        (0, "x", "/v1/embeddings", 3),
        (1, "y", "/v1/embeddings", 2),
        (2, "x", "/v1/responses", 1),
    ]
    assert [row[:2] for row in rows(taken)] == [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (0, 2)]


def test_refused_lines_leave_no_hole_in_their_lane() -> None:
    _, taken = read(b"\n".join([line(), line(method=b'"GET"'), line(), b"oops", line()]))
    assert [row[1:3] for row in rows(taken)] == [(0, 1), (1, 3), (2, 5)]


def test_the_first_hundred_errors_are_reported_and_then_reading_ends() -> None:
    reader, _ = read(b"\n".join([b"oops"] * 150))
    assert [error.line for error in reader.errors()] == list(range(1, 101))
    assert reader.abandoned


def test_duplicates_take_their_place_among_the_errors() -> None:
    reader, _ = read(b"oops\n" + line() + b"\n" + line() + b"\noops", line())
    reader.refuse_duplicate(3, "a", 2)
    reader.refuse_duplicate(5, "a", 2)
    assert [(error.source, error.line) for error in reader.errors()] == [
        ("a", 1),
        ("a", 3),
        ("a", 4),
        ("b", 1),
    ]
    assert "already used on line 2;" in reader.errors()[1].message
    assert "already used on line 2 of a;" in reader.errors()[3].message


def test_a_line_beyond_the_limit_is_refused_once() -> None:
    reader, taken = read(b"\n".join([line()] * 5), rules=ReadingRules(max_lines=3))
    assert [(error.code, error.line) for error in reader.errors()] == [(Code.TOO_MANY_LINES, 4)]
    assert len(rows(taken)) == 3
    assert reader.abandoned


def test_blank_lines_do_not_count_towards_the_limit() -> None:
    assert not read(b"\n\n".join([line()] * 3), rules=ReadingRules(max_lines=3))[0].errors()


def test_a_lane_beyond_the_limit_is_refused() -> None:
    content = b"\n".join(line(body=b'{"model":"%d"}' % n) for n in (1, 2, 1, 3, 2))
    reader, _ = read(content, rules=ReadingRules(max_lanes=2))
    assert [(error.code, error.line) for error in reader.errors()] == [(Code.TOO_MANY_MODELS, 4)]


@pytest.mark.parametrize("block", [1, 7, 100, 10_000])
def test_a_line_too_long_is_refused_and_the_lines_after_it_are_read(block: int) -> None:
    longest = line()
    rules = ReadingRules(max_line_bytes=len(longest))
    content = b"\n".join([longest, longest + b" ", longest, b" " * 500, longest, longest + b" "])
    reader, taken = read(content, rules=rules, block=block)
    assert [(e.code, e.line) for e in reader.errors()] == [(Code.LINE_TOO_LONG, n) for n in (2, 4, 6)]
    assert [row[2] for row in rows(taken)] == [1, 3, 5]


def test_a_line_too_long_is_not_kept_in_memory() -> None:
    reader = Reader(ReadingRules(max_line_bytes=4 * MIB))
    reader.begin("a")
    tracemalloc.start()
    try:
        for _ in range(100):
            reader.feed(b"x" * MIB)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    reader.end()
    assert [error.code for error in reader.errors()] == [Code.LINE_TOO_LONG]
    assert peak < 8 * MIB, f"expected about 4 MiB to be kept of a line of 100 MiB, got {peak / MIB:.0f} MiB"


PIECES = st.sampled_from(
    [
        line(),
        line(b'"b"', body=b'{"model":"other","x":"\xc3\xa9"}'),
        line('"é👩‍🚀"'.encode(), url=b'"/v1/embeddings"'),
        line(custom_id=b'"\\u0000"'),
        line(body=b'{"stream":true,"model":"m"}'),
        line() + b"\r",
        b"\xef\xbb\xbf" + line(),
        b"",
        b" ",
        b"oops",
        b"\xff",
        b" " * 300,
    ]
)


@given(st.lists(st.lists(PIECES, max_size=8), max_size=3), st.booleans(), st.data())
def test_block_boundaries_make_no_difference(
    sources: list[list[bytes]], ends_with_line_feed: bool, data: st.DataObject
) -> None:
    rules = ReadingRules(max_line_bytes=200, max_lines=8, max_lanes=2)
    contents = [b"\n".join(pieces) + b"\n" * ends_with_line_feed for pieces in sources]
    whole, taken_whole = read(*contents, rules=rules)

    cut = Reader(rules)
    taken_cut = []
    for name, content in zip("abc", contents, strict=False):
        cut.begin(name)
        positions = data.draw(st.lists(st.integers(0, len(content)), max_size=6).map(sorted))
        for start, end in zip([0, *positions], [*positions, len(content)], strict=True):
            taken_cut.append(cut.feed(content[start:end]))
        taken_cut.append(cut.end())

    assert rows(taken_cut) == rows(taken_whole)
    assert cut.errors() == whole.errors()
    assert cut.lanes == whole.lanes


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda values: st.lists(values, max_size=3) | st.dictionaries(st.text(), values, max_size=3),
    max_leaves=8,
)
REQUESTS = st.fixed_dictionaries(
    {"custom_id": st.text(min_size=1) | JSON, "method": st.just("POST") | JSON, "url": st.just(CHAT) | JSON},
    optional={
        "body": st.fixed_dictionaries({"model": st.just("m") | JSON}, optional={"stream": JSON, "x": JSON})
        | JSON,
        "more": JSON,
    },
)


@given(REQUESTS, st.booleans())
def test_the_fast_and_the_thorough_parser_accept_the_same_lines(request: object, ascii_only: bool) -> None:
    content = json.dumps(request, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    alone, taken_alone = read(content)
    # A blank line makes the block need a closer look.
    beside_blank, taken_beside_blank = read(b"\n" + content)
    assert [row[3:] for row in rows(taken_alone)] == [row[3:] for row in rows(taken_beside_blank)]
    assert [error.code for error in alone.errors()] == [error.code for error in beside_blank.errors()]


@given(st.binary(max_size=60), st.integers(0, 200))
def test_no_bytes_make_the_reader_fail(noise: bytes, location: int) -> None:
    content = line() + b"\n" + line()
    location = min(location, len(content))
    reader, taken = read(content[:location] + noise + content[location:])
    assert rows(taken) or reader.errors()
