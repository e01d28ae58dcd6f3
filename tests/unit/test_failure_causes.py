"""The cause of an error: the same for errors that differ only in what varies from item to item."""

import time

import pytest

from batchline.model.failure import MAX_MESSAGE, Cause, cause, cause_of_line

SAME = {
    "numbers": (
        "This model's maximum context length is 8192 tokens, however you requested 10,523 tokens.",
        "This model's maximum context length is 4096 tokens, however you requested 9,001 tokens.",
    ),
    "times and units": (
        "Please try again in 1m30s at 2026-11-17T05:32:01Z",
        "Please try again in 0.5s at 2026-11-18",
    ),
    "ids": (
        "Request req_011CSHoEeqs5C35K2UUqR7Fy failed (0b1c3f52-93a1-4d12-8f6e-112233445566)",
        "Request req_77AbQoEeqs5C35K2UUqRzzz9 failed (99999999-93a1-4d12-8f6e-112233445566)",
    ),
    "quoted text": ("Invalid value: 'Translate this to French'", "Invalid value: 'and this to Greek'"),
    "addresses": ("connection to 10.0.0.1:8000 lost", "connection to 10.0.12.7:8443 lost"),
    "space and control characters": ("no  such\r\n\tmodel", "no such model"),
    "the full stop": ("no such model.", "no such model"),
}
DIFFERENT = {
    "models": ('model not found: "gpt-5-mini"', 'model not found: "gpt-5"'),
    "dated models": (
        "The model `gpt-4o-2024-08-06` does not exist",
        "The model `gpt-4o-2024-05-13` does not exist",
    ),
    "parameters": ("Unsupported parameter: 'max_tokens'", "Unsupported parameter: 'seed'"),
    "words": ("no access", "no credit"),
    "text between names": ('"a" is not one of "b", "c"', '"a" is none but one of "b", "c"'),
}


@pytest.mark.parametrize("pair", SAME.values(), ids=SAME)
def test_errors_that_differ_in_what_varies_have_one_cause(pair: tuple[str, str]) -> None:
    first, second = (cause("http_400", message) for message in pair)
    assert first == second


@pytest.mark.parametrize("pair", DIFFERENT.values(), ids=DIFFERENT)
def test_errors_about_different_things_have_different_causes(pair: tuple[str, str]) -> None:
    first, second = (cause("http_404", message) for message in pair)
    assert first.key != second.key
    assert (first.message, second.message) == pair, "names stay readable"


def test_the_code_is_part_of_the_cause() -> None:
    assert cause("http_400", "no").key != cause("http_404", "no").key


def test_a_key_never_changes() -> None:
    """Users name causes by it, and results keep it."""
    assert cause("http_404", 'model not found: "gpt-5-mini"') == Cause(
        "74c188818905", "http_404", 'model not found: "gpt-5-mini"'
    )


def test_a_failure_has_the_cause_of_the_retries_before_it() -> None:
    line = b'{"custom_id":"q-1","response":{"status_code":503,"body":%b},"error":null}'
    said = cause_of_line(line % b'{"error":{"message":"overloaded"}}', 503, b"q-1")
    assert said == cause("http_503", "overloaded")
    silent = cause_of_line(line % b'""', 503, b"q-1")
    assert silent == cause("http_503", "The upstream answered 503 Service Unavailable")
    assert silent.message == "Service Unavailable"


def test_a_failure_without_an_answer_has_its_own_code() -> None:
    line = b'{"custom_id":"q-1","response":null,"error":{"code":"timeout","message":"no answer in time"}}'
    assert cause_of_line(line, None, b"q-1") == cause("timeout", "no answer in time")


def test_the_custom_id_is_a_part_that_varies() -> None:
    def line(custom_id: str) -> Cause:
        text = f'{{"response":{{"status_code":400,"body":{{"detail":"{custom_id} is too long"}}}}}}'
        return cause_of_line(text.encode(), 400, custom_id.encode())

    assert line("user-17") == line("user-18")
    assert line("user-17").message == "… is too long"


HOSTILE = (
    "1" + "a" * 600,
    '"' * 600,
    "'" * 600,
    "1a" * 300,
    "'a " * 200,
    "0.,:" * 150,
    '`"' * 300,
    "a1" * 300,
)


@pytest.mark.parametrize("message", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_message_takes_no_longer_than_others(message: str) -> None:
    """A pattern that goes back over its input would take minutes for some of these."""
    began = time.process_time()
    found = cause("http_400", message)
    assert time.process_time() - began < 1.0
    assert len(found.message) <= 200


def test_what_is_beyond_the_limit_of_messages_is_not_read() -> None:
    assert cause("http_400", "x" * 2 * MAX_MESSAGE) == cause("http_400", "x" * MAX_MESSAGE)
