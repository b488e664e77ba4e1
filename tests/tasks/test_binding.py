"""How the arguments of a call become those of a row, and those of a row a call again."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, Optional
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dray import codec
from dray.errors import Misfit, PayloadError
from dray.model.bounds import ARGS_BYTES
from dray.task.signature import Signature
from tests.tasks.fakes import Context, add

if TYPE_CHECKING:

    class Unseen: ...

    class UnseenContext: ...

    class dray:  # noqa: N801
        class Context: ...


def signature(function: Callable[..., Any]) -> Signature:
    return Signature(function, "shop.task")


# Binding a call.


@dataclass
class Point:
    x: int
    y: int


def many_kinds(
    a: int,
    b: str,
    c: float = 0.5,
    d: bool = True,
    e: list[int] | None = None,
    *,
    f: list[str],
    g: list[float] = [],  # noqa: B006
    h: Any = None,
    i: Point | None = None,
    j: int = None,  # type: ignore[assignment]  # noqa: RUF013 - as people write it
    type: list[bool] = [],  # noqa: A002, B006
) -> None: ...


too_long = st.none().map(lambda _: 10**4_400)  # Hypothesis cannot show it
numbers = st.integers() | st.sampled_from([2**63, -(2**63), 2**63 - 1, 10**4_200]) | too_long
texts = st.text() | st.sampled_from(["\0", "\\u0000", "\ud800", "é\u2028", "x" * 300_000])
floats = st.floats()
anything = st.recursive(
    st.none() | st.booleans() | numbers | floats | texts | st.dates() | st.just(Point(1, 2)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=4,
)
by_name = {
    "a": numbers,
    "b": texts,
    "c": floats,
    "d": st.booleans(),
    "e": st.none() | st.lists(numbers, max_size=3),
    "f": st.lists(texts, max_size=3),
    "g": st.lists(floats, max_size=3),
    "h": anything,
    "i": st.just(Point(1, 2)) | anything,
    "j": numbers | st.none(),
    "type": st.lists(st.booleans(), max_size=2) | anything,
    "unknown": anything,
}


@given(st.data())
def test_a_call_is_written_in_one_pass_as_it_is_step_by_step(data: st.DataObject) -> None:
    found = signature(many_kinds)
    names = data.draw(st.sets(st.sampled_from([*by_name])) | st.just({*by_name} - {"unknown"}))
    kwargs = {name: data.draw(by_name[name] | anything if name == "a" else by_name[name]) for name in sorted(names)}
    args = [kwargs.pop(name) for name in "abcde"[: data.draw(st.integers(0, 5))] if name in kwargs]

    def outcome(way: Callable[[], str]) -> Any:
        try:
            return way()
        except (TypeError, PayloadError) as error:
            return type(error), str(error)

    expected = outcome(lambda: codec.encode(found.bind(args, kwargs), limit=ARGS_BYTES))
    assert outcome(lambda: found.encode(args, kwargs)) == expected


def test_a_plain_call_takes_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    found = signature(many_kinds)
    monkeypatch.delattr(Signature, "bind")

    assert found.encode((1, 'say "é"'), {"f": ["x"], "d": False}) == '{"a":1,"b":"say \\"é\\"","d":false,"f":["x"]}'


def test_a_parameter_may_have_any_name() -> None:
    def odd(dray__quote: str, text: str, len: int) -> None: ...  # noqa: A002

    assert signature(odd).encode(("a", "b", 3), {}) == '{"dray__quote":"a","text":"b","len":3}'


def everything(a: int, b: int = 2, /, c: int = 3, *rest: date, d: str, e: str = "e", **extra: Decimal) -> Any:
    return a, b, c, rest, d, e, extra


def test_arguments_are_stored_by_name_and_defaults_are_not() -> None:
    found = signature(everything)

    assert found.bind((1,), {"d": "x"}) == {"a": 1, "d": "x"}
    assert found.bind((1, 5, 6, date.min, date.max), {"d": "x", "f": Decimal(1)}) == {
        "a": 1,
        "b": 5,
        "c": 6,
        "*rest": ["0001-01-01", "9999-12-31"],
        "d": "x",
        "f": "1",
    }


small = st.integers(0, 9)


@given(
    st.lists(small, min_size=1, max_size=3),
    st.lists(st.dates(), max_size=2),
    st.fixed_dictionaries({"d": st.just("d")}, optional={"e": st.just("x"), "f": st.decimals(allow_nan=False)}),
)
def test_the_call_that_comes_back_is_the_call_that_was_made(
    numbers: list[Any], rest: list[Any], keywords: dict[str, Any]
) -> None:
    found = signature(everything)
    given = [*numbers, *rest] if len(numbers) == 3 else numbers

    stored = json.loads(json.dumps(found.bind(given, keywords)))
    positional, named = found.arrange(stored)

    assert everything(*positional, **named) == everything(*given, **keywords)


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((), {}, r"^shop.task: missing a required argument: 'a'; its arguments are \(a, b=…\)$"),
        ((1, 2, 3), {}, r"^shop.task: too many positional arguments; its arguments are \(a, b=…\)$"),
        ((1,), {"c": 1}, "got an unexpected keyword argument 'c'"),
        ((1,), {"a": 1}, "multiple values for argument 'a'"),
    ],
    ids=["missing", "too many", "unknown", "twice"],
)
def test_a_call_that_does_not_fit_is_a_type_error_as_python_has_it(
    args: tuple[Any, ...], kwargs: dict[str, Any], message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        signature(add).bind(args, kwargs)


@pytest.mark.parametrize("name", ["a", "*rest"])
def test_an_extra_argument_cannot_pass_for_another(name: str) -> None:
    with pytest.raises(TypeError, match="cannot be given by name"):
        signature(everything).bind((1,), {"d": "x", name: 1})


def test_what_will_not_fit_when_the_job_runs_is_refused_when_it_is_enqueued() -> None:
    with pytest.raises(PayloadError, match=r"^args.a: expected int, got str$"):
        signature(add).bind(("1",), {})
    with pytest.raises(PayloadError, match=r'^args\["\*rest"\]\[1\]: expected date'):
        signature(everything).bind((1, 2, 3, date.min, 5), {"d": "x"})
    with pytest.raises(PayloadError, match=r"^args.f: expected Decimal"):
        signature(everything).bind((1,), {"d": "x", "f": None})
    with pytest.raises(PayloadError, match=r"^args.a: object is not JSON"):
        signature(add).bind((object(),), {})


def test_none_fits_where_it_is_the_default_whatever_the_annotation_says() -> None:
    def sloppy(a: int = None) -> Any: ...  # type: ignore[assignment] # noqa: RUF013

    assert signature(sloppy).bind((None,), {}) == {"a": None}
    with pytest.raises(PayloadError):
        signature(sloppy).bind(("1",), {})


def test_arguments_that_are_by_name_already_are_checked_alike() -> None:
    found = signature(everything)

    assert found.fit({"a": 1, "d": "x", "*rest": [date.min]}) == {"a": 1, "d": "x", "*rest": ["0001-01-01"]}
    with pytest.raises(TypeError, match=r"^shop.task: missing 'a', 'd'; its arguments are"):
        found.fit({})
    with pytest.raises(TypeError, match=r"^shop.task: missing 'a'; unknown 'z'"):
        signature(add).fit({"z": 1})


# Arranging a call from a row.


def test_values_come_back_as_they_are_annotated() -> None:
    def function(when: datetime, ids: set[UUID], note: Unseen, any_: Any = None) -> None: ...

    stored = {"when": "2026-01-01T00:00:00Z", "ids": [str(UUID(int=1))], "note": {"a": 1}}

    assert signature(function).arrange(stored) == (
        [datetime(2026, 1, 1, tzinfo=UTC), {UUID(int=1)}, {"a": 1}],
        {},
    )


def test_a_default_applies_as_it_is_now() -> None:
    assert signature(add).arrange({"a": 1}) == ([1], {})
    assert signature(everything).arrange({"a": 1, "d": "x"}) == ([1, 2], {"d": "x"})
    assert signature(everything).arrange({"a": 1, "c": 5, "d": "x"}) == ([1, 2, 5], {"d": "x"})
    assert signature(everything).arrange({"a": 1, "*rest": ["0001-01-01"], "d": "x"}) == (
        [1, 2, 3, date.min],
        {"d": "x"},
    )


def test_after_an_argument_that_is_left_out_the_others_go_by_name() -> None:
    def function(a: int = 1, b: int = 2, c: int = 3) -> None: ...

    assert signature(function).arrange({"a": 0, "c": 9}) == ([0], {"c": 9})


@pytest.mark.parametrize(
    ("stored", "problem"),
    [
        ({}, "missing 'a'"),
        ({"a": 1, "c": 2}, "unknown 'c'"),
        ({"c": 2}, "missing 'a'; unknown 'c'"),
        ({"a": "1"}, "args.a: expected int, got str"),
    ],
    ids=["missing", "unknown", "both", "type"],
)
def test_arguments_that_other_code_made_are_a_misfit(stored: dict[str, Any], problem: str) -> None:
    with pytest.raises(Misfit) as caught:
        signature(add).arrange(stored)

    assert problem in str(caught.value)
    assert str(caught.value).startswith("the stored arguments do not fit the function of task shop.task here")
    assert "(a, b=…). Deploy the code they were made for, or cancel the job" in str(caught.value)


@dataclass
class Tree:
    inner: Tree | None = None


def test_arguments_nested_too_deep_are_a_misfit() -> None:
    def function(tree: Tree) -> None: ...

    stored: dict[str, Any] = {}
    for _ in range(5_000):
        stored = {"inner": stored}

    with pytest.raises(Misfit, match="too deep"):
        signature(function).arrange({"tree": stored})


# What the worker fills in.


def by_class(a: int, ctx: Context) -> None: ...
def by_option(a: int, ctx: Context | None = None) -> None: ...
def by_old_option(a: int, ctx: Optional[Context] = None) -> None: ...  # noqa: UP045
def by_note(a: int, ctx: Annotated[Context, "mine"]) -> None: ...
def by_hidden_name(a: int, ctx: dray.Context) -> None: ...
def by_hidden_option(a: int, ctx: dray.Context | None) -> None: ...
def by_keyword(a: int, *, ctx: Context) -> None: ...
def first(ctx: Context, a: int) -> None: ...


@pytest.mark.parametrize(
    "function",
    [by_class, by_option, by_old_option, by_note, by_hidden_name, by_hidden_option, by_keyword, first],
    ids=lambda function: function.__name__,
)
def test_a_context_is_filled_in_and_never_asked_for(function: Callable[..., Any]) -> None:
    found, context = signature(function), Context()

    assert found.contexts == ("ctx",)
    assert found.bind((1,), {}) == {"a": 1}
    positional, named = found.arrange({"a": 1}, context=context)
    assert [*positional, *named.values()] in ([1, context], [context, 1])
    with pytest.raises(TypeError):
        found.bind((1,), {"ctx": 5})
    with pytest.raises(Misfit, match="unknown 'ctx'"):
        found.arrange({"a": 1, "ctx": 5})


def test_another_class_is_no_context() -> None:
    def function(ctx: UnseenContext, other: Unseen, plain: Any) -> None: ...

    assert signature(function).contexts == ()


def test_extra_arguments_do_not_pass_for_the_context() -> None:
    def function(ctx: Context, **extra: Any) -> None: ...

    found = signature(function)

    with pytest.raises(TypeError, match="'ctx' cannot be given by name"):
        found.bind((), {"ctx": 1})
    with pytest.raises(Misfit, match="unknown 'ctx'"):
        found.arrange({"ctx": 1})


def test_parent_results_are_filled_in_unless_given() -> None:
    def needs(parent_results: dict[str, int], a: int) -> None: ...
    def takes(a: int, parent_results: Any = None) -> None: ...

    results = {"extract": 1}
    for function in (needs, takes):
        found = signature(function)
        assert found.takes_parent_results
        assert found.bind((1,), {}) == {"a": 1}
        assert sorted(found.arrange({"a": 1}, parent_results=results)[0], key=str) == [1, results]
        own = found.bind((1,), {"parent_results": {}})
        assert sorted(found.arrange(own, parent_results=results)[0], key=str) == [1, {}]
    assert signature(needs).arrange({"a": 1}) == ([{}, 1], {})
    assert signature(takes).arrange({"a": 1}) == ([1], {})
    assert not signature(add).takes_parent_results
