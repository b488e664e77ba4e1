"""The JSON edge: what is accepted reads back equal, and all else is refused with the path to it."""

from __future__ import annotations

import dataclasses
import enum
import json
import math
import sys
import tracemalloc
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dray import codec
from dray.codec import MAX_DEPTH, decode
from dray.convert.write import to_json
from dray.errors import PayloadError, PayloadTooLarge

LIMIT = 256 * 1024


def encode(value: Any, *, path: str = "args", limit: int) -> str:
    """As arguments and results are stored."""
    return codec.encode(to_json(value, path), path=path, limit=limit)


def refusal(value: Any, *, limit: int = LIMIT) -> PayloadError:
    with pytest.raises(PayloadError) as caught:
        encode(value, limit=limit)
    return caught.value


def nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth - 1):
        value = [value]
    return value


def with_lists(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [with_lists(item) for item in value]
    if isinstance(value, dict):
        return {key: with_lists(item) for key, item in value.items()}
    return value


texts = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)))
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**200), 2**200)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts
    | st.sampled_from(["\\u0000", '\\"\\u0000', "\u2028", "\x1f", "\x7f"])
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(texts, inner),
)
# What Python programs hold, of which JSON can carry only a part.
hostile = st.recursive(
    scalars
    | st.text(st.characters(categories=["Cs", "Cc", "L"]))
    | st.floats()
    | st.builds(pow, st.just(10), st.just(5000)),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(st.text(st.characters(categories=["Cs", "Cc", "L"])) | st.integers(), inner)
    ),
)


class Colour(enum.StrEnum):
    RED = "red"


class OldColour(str, enum.Enum):  # noqa: UP042 - as code from before Python 3.11 has it
    RED = "red"


class Size(enum.IntEnum):
    BIG = 3


class Weekday(enum.Enum):
    MONDAY = 1


class Point(NamedTuple):
    x: int
    y: int


@dataclasses.dataclass
class Address:
    street: str


# What is accepted.


@given(values)
def test_an_accepted_value_reads_back_equal_with_tuples_as_lists(value: Any) -> None:
    assert decode(encode(value, limit=LIMIT)) == with_lists(value)


@given(hostile)
def test_any_value_either_reads_back_equal_or_is_refused(value: Any) -> None:
    try:
        text = encode(value, limit=LIMIT)
    except PayloadError:
        return
    assert decode(text) == with_lists(value)
    assert "\0" not in text
    assert text.encode().decode() == text


@pytest.mark.parametrize(
    "value",
    [
        *(0, 2**63, -(2**63) - 1, 2**100, 10**4300 - 1, -(10**4300) + 1),
        *(1e308, 5e-324, 0.1, -1.5e-300),
        *("", "é", "日本", "😀", "\u2028\u2029", "\x01\x1f\x7f", '"\\/', "\\u0000", "\\\\u0000"),
        *([], {}, [[]], {"": {}}, [None, True, False], {"a b": {"é": [1, {"\n": 2}]}}),
    ],
    ids=lambda value: ascii(value)[:20],
)
def test_edge_values_read_back_equal(value: Any) -> None:
    assert decode(encode(value, limit=LIMIT)) == value


def test_minus_zero_keeps_its_sign() -> None:
    assert math.copysign(1, decode(encode(-0.0, limit=LIMIT))) == -1


def test_true_and_one_stay_apart() -> None:
    assert encode([True, 1, 1.0, None], limit=LIMIT) == "[true,1,1.0,null]"


def test_the_text_is_compact_and_not_escaped() -> None:
    assert encode({"to": "Zoë", "n": (1, 2)}, limit=LIMIT) == '{"to":"Zoë","n":[1,2]}'


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Colour.RED, '"red"'),
        (OldColour.RED, '"red"'),
        (Size.BIG, "3"),
        (Point(1, 2), "[1,2]"),
        ({Colour.RED: Size.BIG}, '{"red":3}'),
        (OrderedDict(a=1, b=OrderedDict(c=2)), '{"a":1,"b":{"c":2}}'),
        (defaultdict(list, a=[(1,)]), '{"a":[[1]]}'),
        (Counter("aab"), '{"a":2,"b":1}'),
    ],
    ids=str,
)
def test_a_subclass_is_written_as_the_plain_value_of_its_base(value: Any, text: str) -> None:
    assert encode(value, limit=LIMIT) == text


def test_what_a_subclass_overrides_does_not_reach_the_text() -> None:
    class Endless(list[int]):
        def __iter__(self) -> Generator[int]:
            while True:
                yield 1

    class Liar(dict[str, int]):
        def items(self) -> Any:
            return [(1, object())]

    assert encode([Endless([7]), Liar(a=1)], limit=LIMIT) == '[[7],{"a":1}]'


def test_two_keys_that_would_be_written_alike_are_refused() -> None:
    class Key(str):
        __slots__ = ()
        __hash__ = object.__hash__

        def __eq__(self, other: object) -> bool:
            return self is other or (type(other) is str and str.__eq__(self, other))

    assert "written alike" in refusal({Key("a"): 1, Key("a"): 2}).problem


# What is refused, and how the error says where.


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"items": [1, 2, 3, math.nan]}, "args.items[3]"),
        ({"a b": math.inf}, 'args["a b"]'),
        ({"a": {"é": {'"': -math.inf}}}, 'args.a.é["\\""]'),
        ({"": {"1": math.nan}}, 'args[""]["1"]'),
        ({"\x1b[31m": math.nan}, 'args["\\u001b[31m"]'),
        ({"k" * 1000: math.nan}, f'args["{"k" * 39}…"]'),
        (([], [(math.nan,)]), "args[1][0][0]"),
        (math.nan, "args"),
        ({"name": "a\0b"}, "args.name"),
        ({"name": "\udc80"}, "args.name"),
        ({"big": [10**5000]}, "args.big[0]"),
        ({"at": {"when": object()}}, "args.at.when"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_error_names_the_path(value: Any, path: str) -> None:
    error = refusal(value)
    assert error.path == path
    assert str(error).startswith(f"{path}: ")


def test_the_path_begins_with_the_name_it_is_given() -> None:
    with pytest.raises(PayloadError, match=r"^result\[0\]: nan is not JSON"):
        encode([math.nan], path="result", limit=LIMIT)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_json_does_not_have_are_refused(value: float) -> None:
    assert f"{value} is not JSON" in refusal([value]).problem


def test_nul_is_refused_in_strings_and_keys() -> None:
    assert "NUL at position 2" in refusal({"a": "ab\0"}).problem
    assert "NUL at position 0" in refusal({"\0": 1}).problem
    assert refusal({"x": {"\0": 1}}).path == "args.x (a key)"


def test_a_lone_surrogate_is_refused_in_strings_and_keys_and_shown_escaped() -> None:
    assert "'\\udc80' at position 1" in refusal(["a\udc80"]).problem
    assert "'\\ud800' at position 0" in refusal({"\ud800": 1}).problem
    str(refusal({"\ud800": math.nan})).encode()


@pytest.mark.parametrize("value", [10**5000, -(10**5000), 10**4300], ids=["long", "negative", "just"])
def test_an_int_of_too_many_digits_is_refused_whatever_the_interpreter_allows(value: int) -> None:
    usual = sys.get_int_max_str_digits()
    for allowed in (usual, 0):
        sys.set_int_max_str_digits(allowed)
        try:
            assert "more than 4,300 digits" in refusal([value]).problem
        finally:
            sys.set_int_max_str_digits(usual)


def test_an_interpreter_that_allows_fewer_digits_refuses_with_the_same_error() -> None:
    usual = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(640)
    try:
        assert "640 digits" in refusal([10**700]).problem
    finally:
        sys.set_int_max_str_digits(usual)


@pytest.mark.parametrize("key", [1, 1.5, True, None, (1, 2), Weekday.MONDAY])
def test_a_key_that_is_not_a_string_is_refused(key: Any) -> None:
    error = refusal({"m": {key: 1}})
    assert error.path == "args.m"
    assert type(key).__name__ in error.problem


def coroutine_of_nothing() -> Any:
    async def nothing() -> None: ...

    started = nothing()
    started.close()
    return started


@pytest.mark.parametrize(
    ("value", "name", "advice"),
    [
        ((n for n in "ab"), "generator", "list(value)"),
        (coroutine_of_nothing(), "coroutine", "await it"),
        (object(), "object", "an id by which the task finds it"),
        (Address, "type", "an id by which the task finds it"),
        (1j, "complex", "numbers, strings, lists and dicts"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_another_type_is_named_with_what_to_pass_instead(value: Any, name: str, advice: str) -> None:
    problem = refusal({"x": value}).problem
    assert name in problem.partition(" is not JSON; ")[0]
    assert advice in problem.partition(" is not JSON; ")[2]


def in_list(value: Any) -> Any:
    return [value]


def in_dict(value: Any) -> Any:
    return {"k": value}


def in_ordered_dict(value: Any) -> Any:
    return OrderedDict(k=value)


@pytest.mark.parametrize("wrap", [in_list, in_dict, in_ordered_dict])
def test_a_hundred_levels_are_accepted_and_one_more_is_refused(wrap: Callable[[Any], Any]) -> None:
    value: Any = 1
    for _ in range(MAX_DEPTH):
        value = wrap(value)
    assert decode(encode(value, limit=LIMIT)) == value
    assert "more than 100 deep" in refusal(wrap(value)).problem


@pytest.mark.parametrize("depth", [101, 10_000, 1_000_000])
def test_deep_nesting_is_refused_without_recursion(depth: int) -> None:
    error = refusal(nested(depth))
    assert "more than 100 deep" in error.problem
    assert len(error.path) <= 200


def test_a_value_inside_itself_is_refused_where_it_comes_round() -> None:
    items: list[Any] = [1]
    items.append({"again": items})
    assert refusal({"items": items}).path == "args.items[1].again"
    ordered: OrderedDict[str, Any] = OrderedDict()
    ordered["me"] = ordered
    assert "this OrderedDict contains itself" in refusal(ordered).problem
    crowd: list[Any] = []
    crowd.extend([crowd] * 1000)
    assert refusal(crowd).path == "args[0]"


def test_a_value_held_twice_is_written_twice() -> None:
    shared = [1]
    assert encode([shared, shared], limit=LIMIT) == "[[1],[1]]"
    assert encode(OrderedDict(a=shared, b=shared), limit=LIMIT) == '{"a":[1],"b":[1]}'


# How much is accepted.


@pytest.mark.parametrize("letter", ["a", "é", "😀", '"', "\x01"])
def test_the_limit_counts_the_bytes_of_the_text(letter: str) -> None:
    value = {"x": letter * 50}
    size = len(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())
    assert len(encode(value, limit=size).encode()) == size
    with pytest.raises(PayloadTooLarge):
        encode(value, limit=size - 1)


def test_the_limit_also_holds_after_the_slow_walk() -> None:
    value = OrderedDict(x="é" * 50)
    assert encode(value, limit=108)
    with pytest.raises(PayloadTooLarge):
        encode(value, limit=107)


def test_the_error_says_the_size_the_limit_and_what_to_do() -> None:
    with pytest.raises(PayloadTooLarge) as caught:
        encode("a" * 2000, limit=1000)
    assert str(caught.value) == (
        "args: 2,002 bytes of JSON, over the limit of 1,000; store the data elsewhere and pass a reference"
    )


def test_a_huge_string_is_refused_by_its_path_without_a_copy_of_it() -> None:
    value = {"blob": "x" * 1_000_000_000}
    tracemalloc.start()
    try:
        error = refusal(value)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert isinstance(error, PayloadTooLarge)
    assert error.path == "args.blob"
    assert "at least 1,000,000,000 bytes" in error.problem
    assert peak < 1_000_000


def test_a_small_value_that_would_be_written_as_an_endless_text_is_refused() -> None:
    doubled: Any = "x"
    for _ in range(99):
        doubled = [doubled, doubled]
    assert isinstance(refusal(doubled), PayloadTooLarge)
    assert isinstance(refusal({"many": [10**4000] * 10_000}), PayloadTooLarge)
    assert isinstance(refusal([{"k" * 100_000: 1}] * 1000), PayloadTooLarge)
    assert isinstance(refusal([None] * 3_000_000), PayloadTooLarge)


# Reading.


@pytest.mark.parametrize("text", ["", " ", "{", "[1,]", "{'a':1}", '{"a"}', "nul", "1 2", "\ufeff1", "\0", '"\n"'])
def test_malformed_text_is_a_payload_error(text: str) -> None:
    with pytest.raises(PayloadError, match=r"^args: .* is not JSON that can be read: "):
        decode(text)


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", '{"a":-Infinity}', "1e400", "[-1e400]"])
def test_numbers_that_could_not_be_stored_again_are_not_read(text: str) -> None:
    with pytest.raises(PayloadError):
        decode(text)


@pytest.mark.parametrize("text", ["[" * 1_000_000, '{"a":' * 100_000, "[" * 100_000 + "]" * 100_000])
def test_text_nested_too_deep_is_a_payload_error(text: str) -> None:
    with pytest.raises(PayloadError, match="too deep"):
        decode(text)


def test_a_number_of_too_many_digits_is_a_payload_error() -> None:
    with pytest.raises(PayloadError, match="digits"):
        decode("9" * 5000)


def test_the_last_of_duplicate_keys_counts() -> None:
    assert decode('{"a":1,"a":2}') == {"a": 2}


def test_a_reading_error_begins_with_the_name_it_is_given_and_does_not_show_the_text() -> None:
    with pytest.raises(PayloadError) as caught:
        decode('{"token": hunter2}', path="result")
    assert caught.value.path == "result"
    assert "hunter2" not in str(caught.value)


@given(st.text())
def test_any_text_is_read_or_is_a_payload_error(text: str) -> None:
    try:
        decode(text)
    except PayloadError:
        return
    json.loads(text)
