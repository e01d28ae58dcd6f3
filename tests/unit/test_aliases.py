"""A body gets the name that its upstream has for the model, and is otherwise the same."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchline.executors.aliases import with_model

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        pytest.param(b'{"model":"m","n":1}', b'{"model":"x/y","n":1}', id="first"),
        pytest.param(b'{"n": [1,  2.50], "model" : "m"}', b'{"n":[1,  2.50],"model":"x/y"}', id="last"),
        pytest.param(b'{"mod\\u0065l":"m"}', b'{"model":"x/y"}', id="escaped key"),
        pytest.param(b'{"model":"m","a":1,"model":"n"}', b'{"model":"x/y","a":1}', id="twice"),
        pytest.param(
            b'{"x":{"model":"m"},"model":"m"}', b'{"x":{"model":"m"},"model":"x/y"}', id="inner stays"
        ),
        pytest.param(b'{"model":"m","i":1e999}', b'{"model":"x/y","i":1e999}', id="any number"),
        pytest.param(b"[1]", b"[1]", id="no object"),
    ],
)
def test_the_model_is_replaced_and_nothing_else(body: bytes, expected: bytes) -> None:
    assert with_model(body, "x/y") == expected


@given(st.dictionaries(st.text(), VALUES), st.text(min_size=1))
def test_any_body_differs_only_in_its_model(fields: dict[str, object], name: str) -> None:
    assert json.loads(with_model(json.dumps(fields).encode(), name)) == {**fields, "model": name}
