"""Items and results as JSON: what is accepted comes back the same, and nothing else is accepted."""

import enum
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Literal, NamedTuple, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic.dataclasses import dataclass as pydantic_dataclass

from batchline.operations.codec import ItemCodec, TypeMismatch, UnsupportedType, encoded_key


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Point:
    x: int
    y: float
    label: str | None = None
    tags: list[str] = field(default_factory=list)


class Photo(msgspec.Struct):
    id: UUID
    taken: datetime
    price: Decimal
    colour: Colour
    points: list[Point] = []


class Movie(TypedDict):
    title: str
    year: int


class Pair(NamedTuple):
    left: int
    right: str


class Cat(msgspec.Struct, tag=True):
    lives: int


class Dog(msgspec.Struct, tag=True):
    barks: bool


class User(pydantic.BaseModel):
    name: str
    age: int = pydantic.Field(ge=0)
    born: datetime | None = None
    nick: str = pydantic.Field(default="", alias="nickName")


class Team(pydantic.BaseModel):
    users: list[User]


@dataclass
class Wrapper:
    user: User


@pydantic_dataclass
class Checked:
    number: int = pydantic.Field(gt=0)


# Any code point that UTF-8 has, NUL included.
TEXT = st.text(st.characters(codec="utf-8"))
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
INTS = st.integers(-(2**200), 2**200)
JSON = st.recursive(
    st.none() | st.booleans() | INTS | FLOATS | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=20,
)
POINTS = st.builds(Point, x=INTS, y=FLOATS, label=st.none() | TEXT, tags=st.lists(TEXT, max_size=3))
DATETIMES = st.datetimes(timezones=st.none() | st.just(UTC))
TYPED: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (Any, JSON),
    (int, INTS),
    (str, TEXT),
    (float, FLOATS),
    (bytes, st.binary()),
    (datetime, DATETIMES),
    (date, st.dates()),
    (time, st.times()),
    (timedelta, st.timedeltas(timedelta(-9999), timedelta(9999))),
    (UUID, st.uuids()),
    (Decimal, st.decimals(allow_nan=False, allow_infinity=False)),
    (Colour, st.sampled_from(Colour)),
    (Literal["a", 1], st.sampled_from(["a", 1])),
    (int | str | None, st.none() | INTS | TEXT),
    (Cat | Dog, st.builds(Cat, lives=INTS) | st.builds(Dog, barks=st.booleans())),
    (Point, POINTS),
    (Movie, st.fixed_dictionaries({"title": TEXT, "year": INTS})),
    (Pair, st.builds(Pair, INTS, TEXT)),
    (tuple[int, str], st.tuples(INTS, TEXT)),
    (set[int], st.sets(INTS)),
    (dict[int, Point], st.dictionaries(st.integers(-(2**63), 2**63 - 1), POINTS, max_size=3)),
    (
        Photo,
        st.builds(
            Photo,
            id=st.uuids(),
            taken=DATETIMES,
            price=st.decimals(allow_nan=False, allow_infinity=False),
            colour=st.sampled_from(Colour),
            points=st.lists(POINTS, max_size=3),
        ),
    ),
]
USERS = st.builds(User, name=TEXT, age=st.integers(0, 2**70), born=st.none() | DATETIMES, nickName=TEXT)
PYDANTIC: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (User, USERS),
    (list[User], st.lists(USERS, max_size=3)),
    (User | None, st.none() | USERS),
    (Team, st.builds(Team, users=st.lists(USERS, max_size=3))),
    (Wrapper, st.builds(Wrapper, user=USERS)),
    (Checked, st.builds(Checked, number=st.integers(1, 2**70))),
]


@pytest.mark.parametrize(("annotation", "values"), [*TYPED, *PYDANTIC], ids=lambda each: str(each)[:40])
def test_a_value_of_its_type_comes_back_the_same(annotation: Any, values: st.SearchStrategy[Any]) -> None:
    codec = ItemCodec[Any, Any](annotation, annotation)

    @given(values)
    def prove(value: Any) -> None:
        data = codec.encode_item(value)
        assert codec.encode_result(value) == data
        assert codec.decode_item(data) == value
        assert codec.decode_result(data) == value
        # As PostgreSQL needs it: UTF-8 without NUL, and on one line.
        assert not {"\0", "\n", "\r"} & set(data.decode())

    prove()


@given(JSON)
def test_without_an_annotation_any_json_is_accepted(value: Any) -> None:
    codec = ItemCodec[Any, Any]()
    assert codec.decode_item(codec.encode_item(value)) == value


@pytest.mark.parametrize(
    ("annotation", "value", "message"),
    [
        (int, "3", "Expected `int`, got `str`"),
        (int, True, "Expected `int`, got `bool`"),
        (str, None, "Expected `str`, got `null`"),
        (Point, {"x": 1}, "missing required field `y`"),
        (Point, Point("one", 2.0), r"Expected `int`, got `str` - at `\$.x`"),  # type: ignore[arg-type]
        (list[int], [1, 2, "3"], r"at `\$\[2\]`"),
        (Colour, "green", "Invalid enum value 'green'"),
        (Cat | Dog, {"type": "Cow"}, "Invalid value 'Cow'"),
        (User, {"name": "Ann", "age": -1}, "greater than or equal to 0"),
        (User, User.model_construct(name="Ann", age=-1), "greater than or equal to 0"),
        (User, 3, "valid dictionary or instance of User"),
        (Checked, {"number": 0}, "greater than 0"),
        (Any, object(), "Encoding objects of type object is unsupported"),
        (Any, {(1, 2): 3}, "Only dicts with str-like or number-like keys are supported"),
    ],
)
def test_a_value_that_does_not_match_is_refused_with_the_reason(
    annotation: Any, value: Any, message: str
) -> None:
    codec = ItemCodec[Any, Any](annotation, annotation)
    for encode in (codec.encode_item, codec.encode_result):
        with pytest.raises(TypeMismatch, match=message):
            encode(value)


def test_a_dict_may_stand_for_a_type_with_fields() -> None:
    for annotation in (Point, User, Movie):
        value = {"x": 1, "y": 2.5, "name": "Ann", "age": 3, "title": "Up", "year": 2009}
        assert ItemCodec[Any, Any](annotation).encode_item(value)


@pytest.mark.parametrize("annotation", [Any, float | None, list[float | None], User | None | float])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_what_is_no_json_number_does_not_become_null(annotation: Any, value: float) -> None:
    codec = ItemCodec[Any, Any](annotation)
    with pytest.raises(TypeMismatch):
        codec.encode_item([value] if annotation == list[float | None] else value)


def test_a_null_beside_numbers_is_none() -> None:
    codec = ItemCodec[Any, Any]()
    assert codec.encode_item({"a": None, "b": [1.5, "null"]}) == b'{"a":null,"b":[1.5,"null"]}'


@pytest.mark.parametrize("annotation", [Any, str, User])
def test_half_of_a_surrogate_pair_is_refused_with_a_clear_reason(annotation: Any) -> None:
    value: Any = {"name": "a\ud800", "age": 1} if annotation is User else "a\ud800"
    with pytest.raises(TypeMismatch, match="surrogate"):
        ItemCodec[Any, Any](annotation).encode_item(value)


def test_a_value_that_contains_itself_or_is_too_deep_is_refused() -> None:
    codec, endless = ItemCodec[Any, Any](), list[Any]()
    endless.append(endless)
    with pytest.raises(TypeMismatch, match="contains itself"):
        codec.encode_item(endless)
    deep: Any = 1
    for _ in range(201):
        deep = [deep]
    with pytest.raises(TypeMismatch, match="nested more than 200 levels deep"):
        codec.encode_item(deep)
    assert codec.encode_item(deep[0])


def test_a_stored_item_that_does_not_match_any_more_is_refused() -> None:
    codec = ItemCodec[Any, Any](Point)
    for data in (b'{"x":"one"}', b"nothing", b"", b"\xff"):
        with pytest.raises(TypeMismatch):
            codec.decode_item(data)


def test_models_of_both_libraries_in_one_type_are_refused() -> None:
    class Mixed(msgspec.Struct):
        user: User

    with pytest.raises(UnsupportedType, match="Do not mix its models with others"):
        ItemCodec[Any, Any](Mixed)


@pytest.mark.parametrize("key", ["", "a\0", "a\n", "x" * 513, "\ud800"])
def test_a_key_that_cannot_be_stored_is_refused(key: str) -> None:
    with pytest.raises(TypeMismatch, match="the key must"):
        encoded_key(key)


def test_a_key_is_stored_as_it_is() -> None:
    assert encoded_key("Größe 7") == "Größe 7".encode()


@dataclass
class Picky:
    number: int

    def __post_init__(self) -> None:
        if self.number < 0:
            raise LookupError("no negative numbers")


def test_what_a_class_of_the_user_raises_is_the_reason() -> None:
    codec = ItemCodec[Any, Any](Picky)
    assert codec.decode_item(codec.encode_item(Picky(1))) == Picky(1)
    with pytest.raises(TypeMismatch, match="LookupError: no negative numbers"):
        codec.encode_item({"number": -1})
    with pytest.raises(TypeMismatch, match="no negative numbers"):
        codec.decode_item(b'{"number":-1}')


@pytest.mark.parametrize("annotation", [dict, list, object, dict[str, Any], list[object]])
def test_a_type_without_details_accepts_plain_json(annotation: Any) -> None:
    codec = ItemCodec[Any, Any](annotation)
    value: Any = [1, {"a": None}] if annotation in (list, list[object]) else {"a": [1, None]}
    assert codec.decode_item(codec.encode_item(value)) == value


class Login(pydantic.BaseModel):
    user: str
    password: pydantic.SecretStr


class OpenLogin(Login):
    @pydantic.field_serializer("password")
    def revealed(self, password: pydantic.SecretStr) -> str:
        return password.get_secret_value()


def test_a_secret_that_would_be_stored_as_stars_is_refused() -> None:
    with pytest.raises(TypeMismatch, match=r"a secret would be stored as \*{10}; use str"):
        ItemCodec[Any, Any](Login).encode_item(Login(user="a", password=pydantic.SecretStr("pw")))
    codec, known = ItemCodec[Any, Any](OpenLogin), OpenLogin(user="*" * 12, password=pydantic.SecretStr("pw"))
    assert codec.decode_item(codec.encode_item(known)) == known


class Measured(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(ser_json_inf_nan="constants")
    value: float
    unit: str = "NaN"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_model_that_writes_nan_as_a_constant_is_refused(value: float) -> None:
    codec = ItemCodec[Any, Any](Any, Measured)
    with pytest.raises(TypeMismatch, match="NaN and infinity are not JSON"):
        codec.encode_result(Measured(value=value))
    assert codec.encode_result(Measured(value=1.5)) == b'{"value":1.5,"unit":"NaN"}'
