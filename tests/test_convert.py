"""Values and JSON by annotation: what is written is read back equal, and what does not fit is named by its path."""

from __future__ import annotations

import base64
import enum
import json
import math
import subprocess
import sys
import types
import typing
from collections import OrderedDict, defaultdict
from collections.abc import Collection, Iterable, Mapping, MutableSequence, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import InitVar, dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import (
    Annotated,
    Any,
    ClassVar,
    Final,
    Generic,
    Literal,
    NamedTuple,
    NewType,
    NotRequired,
    Optional,
    Protocol,
    Required,
    TypedDict,
    TypeVar,
    Union,
)
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dray.codec import decode, encode
from dray.convert.annotations import reader
from dray.convert.forms import hints
from dray.convert.write import to_json
from dray.errors import PayloadError

LIMIT = 1 << 20
T = TypeVar("T")


class Colour(enum.StrEnum):
    RED = "red"
    BLUE = "blue"


class Size(enum.IntEnum):
    SMALL = 1
    BIG = 3


class Corner(enum.Enum):
    TOP = (0, 1)
    BOTTOM = (0, -1)


class Odd(enum.Enum):
    ONE = 1
    OBJECT = object()


class Right(enum.Flag):
    READ = 1
    WRITE = 2


class Point(NamedTuple):
    x: int
    y: Decimal = Decimal(0)


@dataclass
class Address:
    street: str
    number: int | None = None


@dataclass
class Customer:
    name: str
    born: date
    address: Address
    others: list[Address] = field(default_factory=list[Address])
    labels: dict[str, UUID] = field(default_factory=dict[str, UUID])
    kind: ClassVar[str] = "customer"
    shown: str = field(init=False, default="")

    def __post_init__(self) -> None:
        self.shown = self.name.title()


@dataclass(frozen=True)
class Node:
    value: int
    children: list[Node] = field(default_factory=list["Node"])


@dataclass
class Positive:
    n: int

    def __post_init__(self) -> None:
        if self.n < 0:
            raise ValueError("n is negative")


@dataclass
class Box(Generic[T]):
    content: T
    at: date


class Order(TypedDict):
    id: UUID
    note: NotRequired[str]


class Loose(TypedDict, total=False):
    at: Required[date]
    size: Size


UserId = NewType("UserId", int)


class Closable(Protocol):
    def close(self) -> None: ...


def read(annotation: Any, value: Any) -> Any:
    """The JSON value as the annotation has it."""
    compiled = reader(annotation)
    return value if compiled is None else compiled(value, "args.x")


def there_and_back(annotation: Any, value: Any) -> Any:
    return read(annotation, decode(encode(to_json(value, "args"), limit=LIMIT)))


def unwritable(value: Any) -> PayloadError:
    with pytest.raises(PayloadError) as caught:
        to_json(value, "args")
    return caught.value


def misfit(annotation: Any, value: Any) -> PayloadError:
    with pytest.raises(PayloadError) as caught:
        read(annotation, value)
    return caught.value


# Round trips.

texts = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)))
offsets = st.integers(-80_000, 80_000).map(lambda seconds: timezone(timedelta(seconds=seconds)))
moments = st.datetimes(datetime(2, 1, 1), datetime(9998, 1, 1), timezones=offsets)  # noqa: DTZ001
addresses = st.builds(Address, texts, st.none() | st.integers())
nodes: st.SearchStrategy[Node] = st.deferred(lambda: st.builds(Node, st.integers(), st.lists(nodes, max_size=2)))

SIMPLE: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (bool, st.booleans()),
    (int, st.integers()),
    (float, st.floats(allow_nan=False, allow_infinity=False)),
    (str, texts),
    (None, st.none()),
    (datetime, moments),
    (date, st.dates()),
    (time, st.times() | st.times(timezones=offsets)),
    (timedelta, st.timedeltas(timedelta(days=-90_000), timedelta(days=90_000))),
    (UUID, st.uuids()),
    (Decimal, st.decimals(allow_nan=False)),
    (bytes, st.binary()),
    (bytearray, st.binary().map(bytearray)),
    (PurePosixPath, texts.map(PurePosixPath)),
    (Path, texts.map(Path)),
    (Colour, st.sampled_from(Colour)),
    (Size, st.sampled_from(Size)),
    (Corner, st.sampled_from(Corner)),
    (Right, st.builds(Right, st.integers(0, 3))),
    (Literal["a", 1, True, None, Colour.RED], st.sampled_from(["a", 1, True, None, Colour.RED])),
    (UserId, st.integers()),
    (Annotated[Decimal, "money"], st.decimals(allow_nan=False)),
    (Point, st.builds(Point, st.integers(), st.decimals(allow_nan=False))),
    (Address, addresses),
    (Customer, st.builds(Customer, texts, st.dates(), addresses, st.lists(addresses))),
    (Node, nodes),
    (Order, st.fixed_dictionaries({"id": st.uuids()}, optional={"note": texts})),
    (Loose, st.fixed_dictionaries({"at": st.dates()}, optional={"size": st.sampled_from(Size)})),
]


HASHABLE = (int, str, date, UUID, Colour)


@pytest.mark.parametrize(("annotation", "values"), SIMPLE, ids=lambda each: getattr(each, "__name__", None))
@settings(max_examples=30)
@given(data=st.data())
def test_what_is_written_is_read_back_equal_and_of_its_type(
    annotation: Any, values: st.SearchStrategy[Any], data: st.DataObject
) -> None:
    value = data.draw(values)

    back = there_and_back(annotation, value)

    assert back == value
    assert type(back) is type(value)


@given(st.data())
def test_so_is_what_holds_such_values(data: st.DataObject) -> None:
    annotation, values = data.draw(st.sampled_from(SIMPLE))
    hashable, keys = data.draw(st.sampled_from([each for each in SIMPLE if each[0] in HASHABLE]))
    holders: list[tuple[Any, st.SearchStrategy[Any]]] = [
        (list[annotation], st.lists(values, max_size=3)),
        (Sequence[annotation], st.lists(values, max_size=3)),
        (dict[str, annotation], st.dictionaries(texts, values, max_size=3)),
        (tuple[annotation, ...], st.lists(values, max_size=3).map(tuple)),
        (tuple[int, annotation], st.tuples(st.integers(), values)),
        (set[hashable], st.sets(keys, max_size=3)),
        (frozenset[hashable], st.frozensets(keys, max_size=3)),
        (Optional[annotation], st.none() | values),  # noqa: UP045 - also for what is no class
    ]
    holder, held = data.draw(st.sampled_from(holders))
    value = data.draw(held)

    back = there_and_back(holder, value)

    assert back == value
    assert type(back) is type(value)


scalars = st.none() | st.booleans() | st.integers() | texts


@given(st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(texts, inner)))
def test_plain_json_is_unchanged(value: Any) -> None:
    assert to_json(value, "args") == value
    assert read(Any, value) is value


# Writing.


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (datetime(2026, 1, 31, 12, tzinfo=UTC), "2026-01-31T12:00:00+00:00"),
        (datetime(2026, 7, 1, tzinfo=ZoneInfo("Europe/Berlin")), "2026-07-01T00:00:00+02:00"),
        (timedelta(minutes=1, microseconds=1), 60.000001),
        (Decimal("9.90"), "9.90"),
        (b"\xff", base64.b64encode(b"\xff").decode()),
        ({3, 20, 1}, [1, 3, 20]),
        ({"b", 1, None}, ["b", 1, None]),
        ({frozenset({2, 1}), frozenset({3})}, [[1, 2], [3]]),
        ({UUID(int=1): 1, Colour.RED: 2, date(2026, 1, 1): 3}, {str(UUID(int=1)): 1, "red": 2, "2026-01-01": 3}),
        ((1, (2,)), [1, [2]]),
        (Point(1), [1, "0"]),
        (OrderedDict(a=defaultdict(list, b=[Path("/x")])), {"a": {"b": ["/x"]}}),
        (Customer("ann", date(2000, 1, 1), Address("Elm")).address, {"street": "Elm", "number": None}),
        (Right.READ | Right.WRITE, 3),
    ],
    # Named one by one: a set is shown in another order by each process, and all must collect the same tests.
    ids=[
        *("instant", "instant elsewhere", "duration", "decimal", "bytes", "set", "set of all kinds", "set of sets"),
        *("keys", "tuple", "named tuple", "ordered dict", "dataclass", "flag"),
    ],
)
def test_each_type_has_one_form(value: Any, written: Any) -> None:
    assert to_json(value, "args") == written


def test_equal_sets_are_written_alike_whatever_their_order() -> None:
    assert to_json({"b", 1, "a", None, 2.5}, "args") == to_json({2.5, None, "a", 1, "b"}, "args")


def test_a_subclass_is_written_as_the_plain_value_in_it() -> None:
    class Text(str):
        __slots__ = ()

        def __str__(self) -> str:
            return "other"

    written = to_json([Text("a"), Size.BIG, Colour.RED], "args")

    assert written == ["a", 3, "red"]
    assert [type(item) for item in written] == [str, int, str]


def test_what_a_subclass_overrides_is_not_asked() -> None:
    class Endless(list[int]):
        def __iter__(self) -> Any:
            while True:
                yield 1

    assert to_json(Endless([7]), "args") == [7]


def test_a_naive_datetime_is_refused_with_what_to_do() -> None:
    error = unwritable({"when": datetime(2026, 1, 1)})  # noqa: DTZ001

    assert error.path == "args.when"
    assert "names no instant; use datetime.now(UTC)" in error.problem


def test_a_time_whose_offset_depends_on_the_day_is_refused() -> None:
    assert "depends on the day" in unwritable(time(12, tzinfo=ZoneInfo("Europe/Berlin"))).problem


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"items": [1, 2, 3, object()]}, "args.items[3]"),
        ({"a b": {"c": object()}}, 'args["a b"].c'),
        ([Address(object())], "args[0].street"),  # type: ignore[arg-type]
        ({"s": {object()}}, "args.s[0]"),
        ({"k" * 99: object()}, f'args["{"k" * 39}…"]'),
        ({"m": {1: 2}}, "args.m"),
    ],
    ids=["list", "dict", "dataclass", "set", "long key", "key"],
)
def test_what_cannot_be_written_is_named_by_its_path(value: Any, path: str) -> None:
    assert unwritable(value).path == path


@pytest.mark.parametrize(
    ("value", "named", "advice"),
    [
        (object(), "object", "an id by which the task finds it"),
        (1j, "complex", "numbers, strings, lists and dicts"),
        (Address, "type", "an id by which"),
        ((n for n in "ab"), "generator", "pass list(value)"),
        ({1: 2}, "int", "use str(key)"),
    ],
    ids=["object", "complex", "class", "generator", "key"],
)
def test_the_error_names_the_type_and_says_what_to_do(value: Any, named: str, advice: str) -> None:
    problem = unwritable(value).problem
    assert named in problem
    assert advice in problem


def test_two_keys_that_would_be_written_alike_are_refused() -> None:
    assert "alike" in unwritable({UUID(int=1): 1, str(UUID(int=1)): 2}).problem


@pytest.mark.parametrize("depth", [101, 100_000])
def test_deep_nesting_is_refused_without_recursion(depth: int) -> None:
    value: Any = []
    for _ in range(depth):
        value = [value]

    error = unwritable(value)

    assert "more than 100 deep" in error.problem
    assert len(error.path) <= 200


def test_a_hundred_levels_are_written() -> None:
    value: Any = []
    for _ in range(99):
        value = (value,)
    assert encode(to_json(value, "args"), limit=LIMIT) == "[" * 100 + "]" * 100


def test_what_contains_itself_is_refused_where_it_comes_round() -> None:
    node = Node(1)
    node.children.append(node)
    assert unwritable({"node": node}).path == "args.node.children[0]"
    assert "this Node contains itself" in unwritable({"node": node}).problem


def test_a_web_of_lists_is_written_in_no_time() -> None:
    web: Any = [1]
    for _ in range(90):
        web = [web, web]
    to_json(web, "args")


# Reading: what fits.


class Holder:
    class Inner:
        pass


@pytest.mark.parametrize(
    ("annotation", "value", "expected"),
    [
        (float, 1, 1.0),
        (timedelta, 90, timedelta(seconds=90)),
        (Decimal, 5, Decimal(5)),
        (Decimal, 0.1, Decimal("0.1")),
        (datetime, "2026-01-31T12:00:00Z", datetime(2026, 1, 31, 12, tzinfo=UTC)),
        (UUID, "0" * 32, UUID(int=0)),
        (list, [1, "a"], [1, "a"]),
        (typing.List, [1], [1]),  # noqa: UP006
        (typing.Dict[str, date], {"a": "2026-01-01"}, {"a": date(2026, 1, 1)}),  # noqa: UP006
        (dict, {"a": 1}, {"a": 1}),
        (tuple, [1, 2], (1, 2)),
        (set, [1, 1], {1}),
        (Iterable[date], ["2026-01-01"], [date(2026, 1, 1)]),
        (Collection[int], [1], [1]),
        (MutableSequence[int], [1], [1]),
        (AbstractSet[int], [1], {1}),
        (Mapping[str, Size], {"a": 3}, {"a": Size.BIG}),
        (dict[Colour, date], {"red": "2026-01-01"}, {Colour.RED: date(2026, 1, 1)}),
        (Point, [1], Point(1)),
        (Address, {"street": "Elm"}, Address("Elm")),
        (Box[int], {"content": 1, "at": "2026-01-01"}, Box(1, date(2026, 1, 1))),
        (Final[date], "2026-01-01", date(2026, 1, 1)),
        (Order, {"id": "0" * 32, "more": 1}, {"id": UUID(int=0), "more": 1}),
    ],
    ids=lambda each: str(each)[:30],
)
def test_json_becomes_what_is_annotated(annotation: Any, value: Any, expected: Any) -> None:
    back = read(annotation, value)
    assert back == expected
    assert type(back) is type(expected)


@pytest.mark.parametrize("annotation", [Any, object, T, Closable, Holder.Inner, "Nowhere", type, [int]], ids=str)
def test_an_annotation_that_says_nothing_about_json_leaves_the_value_as_it_is(annotation: Any) -> None:
    assert reader(annotation) is None


@pytest.mark.parametrize(
    ("annotation", "value", "expected"),
    [
        (int | None, None, None),
        (float | int, 1, 1),
        (float | None, 1, 1.0),
        (Decimal | int, 1, 1),
        (int | str, "1", "1"),
        (UUID | str, "0" * 32, UUID(int=0)),
        (UUID | str, "hello", "hello"),
        (str | UUID, "0" * 32, "0" * 32),
        (datetime | date, "2026-01-01", date(2026, 1, 1)),
        (Colour | str, "red", Colour.RED),
        (Positive | Address, {"street": "Elm"}, Address("Elm")),
        (list[int] | list[str], ["a"], ["a"]),
        (Union[date, "Nowhere"], [1], [1]),  # type: ignore[name-defined] # noqa: F821
    ],
    ids=lambda each: str(each)[:30],
)
def test_of_a_union_the_first_member_that_can_read_the_value_does(annotation: Any, value: Any, expected: Any) -> None:
    back = read(annotation, value)
    assert back == expected
    assert type(back) is type(expected)


# Reading: what does not fit.


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        *((int, value) for value in (True, 1.0, "1", None, [1])),
        *((bool, value) for value in (1, 0, "true", None)),
        *((float, value) for value in (True, "1", None, 10**400)),
        *((str, value) for value in (1, None, ["a"])),
        *((Size, value) for value in (True, 1.0, "1", 2)),
        *((Right, value) for value in (True, 8, "1")),
        *((Literal[1, "a"], value) for value in (True, 1.0, "b", None)),
        *((datetime, value) for value in ("2026-01-01", "2026-01-01T00:00:00", "soon", 0)),
        *((date, value) for value in ("2026-02-30", "2026-01-01T00:00:00Z", 0)),
        *((timedelta, value) for value in ("1", True, 1e300)),
        *((UUID, value) for value in ("", "xyz", 1)),
        *((Decimal, value) for value in ("", "1,5", True, None)),
        *((bytes, value) for value in ("ä", "a", "a b=", 1)),
        *((list[int], value) for value in ("ab", {"a": 1}, [1, "a"])),
        *((set[list[int]], value) for value in ([[1]],)),
        *((tuple[int, str], value) for value in ([1], [1, "a", 2], ["a", 1])),
        *((tuple[int, ...], value) for value in ("a", ["a"])),
        *((dict[str, int], value) for value in ([1], {"a": "b"})),
        *((dict[UUID, int], value) for value in ({"a": 1},)),
        *((Point, value) for value in ([], [1, "2", 3], ["a"], {"x": 1})),
        *((Address, value) for value in ({}, {"street": 1}, {"street": "a", "extra": 1}, "Elm", None)),
        *((Order, value) for value in ({}, {"id": 1}, {"id": "0" * 32, "note": 1})),
        *((Loose, value) for value in ({}, {"size": 3})),
        *((int | None, value) for value in ("1", True)),
        (None, 0),
        (Odd, 2),
    ],
    ids=lambda each: str(each)[:30],
)
def test_nothing_is_bent_into_a_type(annotation: Any, value: Any) -> None:
    assert misfit(annotation, value).path.startswith("args.x")


@pytest.mark.parametrize(
    ("annotation", "value", "message"),
    [
        (int, "5", "args.x: expected int, got str"),
        (str, None, "args.x: expected str, got null"),
        (list[dict[str, int]], [{}, {"a": "b"}], "args.x[1].a: expected int, got str"),
        (tuple[int, str], [1], "args.x: expected 2 items, got 1"),
        (int | None, "5", "args.x: expected int | None, got str"),
        (Colour, "green", "args.x: expected one of Colour, got something else"),
        (date, 5, "args.x: expected date (2026-01-31), got int"),
        (date, "soon", "args.x: expected date (2026-01-31), got something else"),
        (Address, {"no": 1}, "args.x: not a Address: 'street' is missing, 'no' is not known"),
        (Customer, {"name": "a", "born": "soon", "address": {}}, "args.x.born: expected date (2026-01-31), "),
        (dict[UUID, int], {"a": 1}, "args.x (a key): expected UUID (32 hexadecimal digits), got something else"),
        (Positive, {"n": -1}, "args.x: Positive refused it: n is negative"),
    ],
    ids=lambda each: str(each)[:40],
)
def test_the_error_says_where_what_was_expected_and_what_came(annotation: Any, value: Any, message: str) -> None:
    assert str(misfit(annotation, value)).startswith(message)


@pytest.mark.parametrize("annotation", [int, date, UUID, Decimal, bytes, Colour, Literal["a"], Address, int | None])
def test_no_error_shows_the_value(annotation: Any) -> None:
    assert "hünter2" not in str(misfit(annotation, "hünter2"))


def test_an_enum_member_that_is_not_json_does_not_spoil_the_others() -> None:
    assert read(Odd, 1) is Odd.ONE


def test_a_dataclass_that_needs_what_no_value_keeps_says_so() -> None:
    @dataclass
    class Needy:
        n: int
        seed: InitVar[int]

        def __post_init__(self, seed: int) -> None:
            self.n += seed

    assert "seed" in misfit(Needy, {"n": 1}).problem


# Annotations that are hard to come by.


def test_one_annotation_that_cannot_be_resolved_leaves_the_others() -> None:
    def function(when: date, what: Nowhere, size: Size) -> Elsewhere: ...  # type: ignore[name-defined] # noqa: F821

    found = hints(function)

    assert (found["when"], found["size"]) == (date, Size)
    assert reader(found["what"]) is None
    assert reader(found["return"]) is None


def test_a_class_with_an_annotation_that_cannot_be_resolved_is_read_with_that_field_as_it_is() -> None:
    @dataclass
    class Partial(Address):
        at: date = date.min
        unknown: Nowhere = None  # type: ignore[name-defined] # noqa: F821

    value = read(Partial, {"street": "Elm", "at": "2026-01-01", "unknown": [1]})

    assert (value.at, value.unknown) == (date(2026, 1, 1), [1])


@pytest.mark.skipif(sys.version_info < (3, 11, 4), reason="until Python 3.11.4 every Flag drops unknown bits")
def test_a_flag_that_drops_unknown_bits_does_so_here_too() -> None:
    class Mask(enum.Flag, boundary=enum.CONFORM):
        READ = 1
        WRITE = 2

    assert read(Mask, 9) is Mask.READ


@pytest.mark.skipif(sys.version_info < (3, 12), reason="the type statement came with Python 3.12")
def test_a_type_alias_may_name_itself() -> None:
    names: dict[str, Any] = {"date": date}
    exec("type Tree = list[Tree] | date", names)

    assert read(names["Tree"], ["2026-01-01", [[]]]) == [date(2026, 1, 1), [[]]]
    assert misfit(names["Tree"], 1)


# Models of other libraries.


class FakeInvalid(ValueError):
    def errors(self, **included: bool) -> list[dict[str, Any]]:
        assert included == {"include_url": False, "include_context": False, "include_input": False}
        return [{"loc": ("when", 0), "msg": "Input should be a date"}]


class FakeModel:
    """Speaks as a pydantic model does."""

    def __init__(self, when: Any) -> None:
        self.when = when

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FakeModel) and other.when == self.when

    __hash__ = None  # type: ignore[assignment]

    def model_dump(self, *, mode: str, by_alias: bool, round_trip: bool) -> dict[str, Any]:
        assert (mode, by_alias, round_trip) == ("json", True, True)
        if isinstance(self.when, date):
            return {"when": self.when.isoformat()}
        raise ValueError("Unable to serialize")

    @classmethod
    def model_validate_json(cls, text: str) -> FakeModel:
        try:
            return cls(date.fromisoformat(json.loads(text)["when"]))
        except (KeyError, TypeError, ValueError):
            raise FakeInvalid(text) from None


def test_a_pydantic_model_is_written_and_read_by_itself() -> None:
    assert there_and_back(list[FakeModel], [FakeModel(date.min)]) == [FakeModel(date.min)]


def test_a_pydantic_model_that_does_not_validate_is_a_misfit_without_its_values() -> None:
    assert misfit(FakeModel, {"when": "hunter2"}).problem == "not a FakeModel: when.0: Input should be a date"


def test_a_pydantic_model_that_cannot_be_dumped_is_refused() -> None:
    assert "Unable to serialize" in unwritable({"m": FakeModel(object())}).problem


@dataclass
class FakeStruct:
    """Looks like a msgspec.Struct; a dataclass only for the sake of ==."""

    when: date
    __struct_fields__: ClassVar[tuple[str, ...]] = ("when",)


class FakeValidationError(Exception):
    pass


@pytest.fixture
def msgspec(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = types.ModuleType("msgspec")

    def to_builtins(value: FakeStruct, *, str_keys: bool) -> Any:
        assert str_keys
        return {"when": value.when.isoformat()}

    def convert(value: Any, kind: Any, *, str_keys: bool) -> Any:
        assert str_keys
        if not isinstance(value, dict):
            raise FakeValidationError("Expected `object`")
        return kind(date.fromisoformat(value["when"]))

    vars(fake).update(to_builtins=to_builtins, convert=convert, ValidationError=FakeValidationError)
    monkeypatch.setitem(sys.modules, "msgspec", fake)


@pytest.mark.usefixtures("msgspec")
def test_a_msgspec_struct_is_written_and_read_by_its_library() -> None:
    assert there_and_back(FakeStruct | None, FakeStruct(date.max)) == FakeStruct(date.max)


@pytest.mark.usefixtures("msgspec")
def test_a_msgspec_struct_that_does_not_validate_is_a_misfit() -> None:
    assert misfit(FakeStruct, 1).problem == "not a FakeStruct: Expected `object`"


def test_a_real_pydantic_model_comes_back_whole() -> None:
    pydantic = pytest.importorskip("pydantic")

    class Strict(pydantic.BaseModel, strict=True, extra="forbid"):  # type: ignore[misc,name-defined]
        when: datetime
        amount: Decimal = pydantic.Field(alias="amountOf")

        @pydantic.computed_field
        def year(self) -> int:
            return self.when.year

    value = Strict(when=datetime.now(UTC), amountOf=Decimal("9.90"))

    assert there_and_back(Strict, value) == value
    assert "hunter2" not in misfit(Strict, {"when": "hunter2", "amountOf": "1"}).problem


def test_a_real_msgspec_struct_comes_back_whole() -> None:
    msgspec = pytest.importorskip("msgspec")

    class Event(msgspec.Struct):  # type: ignore[misc,name-defined]
        when: datetime
        sizes: dict[int, set[UUID]]
        raw: bytes

    value = Event(datetime.now(UTC), {1: {UUID(int=1)}}, b"\xff")

    assert there_and_back(Event, value) == value
    assert misfit(Event, {"when": 1}).problem.startswith("not a Event")


def test_neither_library_is_imported() -> None:
    code = "import sys, dray.convert.annotations, dray.task.task; "
    code += "print({'pydantic', 'msgspec', 'cronsim'} & set(sys.modules))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == "set()"


def test_nan_is_left_to_the_codec() -> None:
    with pytest.raises(PayloadError, match="nan is not JSON"):
        encode(to_json({"x": math.nan}, "args"), limit=LIMIT)


def test_items_with_metadata_that_cannot_be_hashed_are_read() -> None:
    read = reader(list[Annotated[int, {"gt": 0}]])
    assert read is not None
    assert read([1, 2], "args") == [1, 2]
