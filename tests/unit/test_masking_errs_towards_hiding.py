"""Secrets in forms that people really write: none of them is shown."""

from typing import Any

import pytest

from batchline.secrets.masking import MASK, is_secret_name, masked, masked_text


@pytest.mark.parametrize(
    ("text", "displayed"),
    [
        ("postgres://u:p@ss@h", f"postgres://{MASK}@h"),
        ("postgres://u:p@s@s@h:5432/db", f"postgres://{MASK}@h:5432/db"),
        ("at amqp://u:p@ss@h/v?a=b@c!", f"at amqp://{MASK}@h/v?a=b@c!"),
        ("Password=a b;", f"Password={MASK};"),
        ("Server=s;Password=a b;Database=d", f"Server=s;Password={MASK};Database=d"),
        ("Server=s;Password=a b", f"Server=s;Password={MASK}"),
        ("Server=s; Pwd = a b c ;Database=d", f"Server=s; Pwd = {MASK};Database=d"),
        ("AccountName=n;AccountKey=a+b/c==;", f"AccountName=n;AccountKey={MASK};"),
        ("passwörd=geheim", f"passwörd={MASK}"),
        ("Das Passwörd: geheim", f"Das Passwörd: {MASK}"),
        ("passwo\u0308rd=geheim", f"passwo\u0308rd={MASK}"),
    ],
)
def test_a_secret_in_text_is_hidden_whole(text: str, displayed: str) -> None:
    assert masked_text(text) == displayed


@pytest.mark.parametrize(
    "text",
    [
        "see https://example.com/a@b and mail me@example.com",
        "https://example.com/?q=a@b",
        "the password is wrong; try again",
        "3 tokens; 4 more",
        "a: b; c: d",
    ],
)
def test_ordinary_text_stays_readable(text: str) -> None:
    assert masked_text(text) == text


@pytest.mark.parametrize(
    "name",
    [
        "passwörd",
        "PASSWÖRD",
        "passwo\u0308rd",
        "pass\u200bword",
        "ｐａｓｓｗｏｒｄ",
        "tóken",
        "sécret",
        "dbPasswörd",
    ],
)
def test_a_name_is_secret_with_marks_on_its_letters_too(name: str) -> None:
    assert is_secret_name(name)
    assert masked({name: "geheim"}) == {name: MASK}


def test_names_that_an_operation_adds_are_found_with_marks_too() -> None:
    value: dict[str, Any] = {"pín": "1234", "Größe": 3}
    assert masked(value, ("PIN",)) == {"pín": MASK, "Größe": 3}
    assert masked({"grosse": 1, "größe": 2}, ("Größe",)) == {"grosse": 1, "größe": MASK}
