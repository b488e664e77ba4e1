"""Tasks: which functions, under which names and options; how a call becomes a job, and a job a call again."""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import logging
import math
import random
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import FrozenInstanceError, dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dray.clock import Ids
from dray.codec import decode
from dray.errors import ConfigError, InvalidName, Misfit, PayloadError, PayloadTooLarge, UnknownTask
from dray.instants import SECOND, from_datetime
from dray.model import retry
from dray.model.new_job import NewJob
from dray.model.schedule import Rule
from dray.task.job_options import JobOptions, prepare
from dray.task.options import TaskOptions, next_delay_us, task_name
from dray.task.registry import Registry
from dray.task.signature import Signature
from dray.task.task import AsyncTask, Task, define
from tests.manual_clock import ManualClock

if TYPE_CHECKING:

    class Unseen: ...

    class UnseenContext: ...

    class dray:  # noqa: N801
        class Context: ...


class Context:
    """What the worker hands to a body; the real one has the same mark."""

    __dray_context__ = True


@dataclass
class Handle:
    """What an App answers to an enqueue."""

    job: NewJob

    @property
    def id(self) -> str:
        return self.job.id

    def result(self, timeout: float | None = None) -> Any:
        raise TimeoutError

    async def aresult(self, timeout: float | None = None) -> Any:
        raise TimeoutError


class FakeApp:
    """An App that notes what it is asked to write."""

    def __init__(self) -> None:
        self.context: Any = None
        self.batches: list[list[NewJob]] = []
        self.connections: list[Any] = []
        self.new_id = Ids(ManualClock()).new

    def submit(self, new: Sequence[NewJob], connection: Any = None, workflow: Any = None) -> list[Any]:
        self.batches.append(list(new))
        self.connections.append(connection)
        return [Handle(each) for each in new]

    async def asubmit(self, new: Sequence[NewJob], connection: Any = None, workflow: Any = None) -> list[Any]:
        return self.submit(new, connection)

    def local_context(self, task: Task[..., Any]) -> Any:
        return self.context

    @property
    def jobs(self) -> list[NewJob]:
        return [each for batch in self.batches for each in batch]


@pytest.fixture
def app() -> Any:
    return FakeApp()


def add(a: int, b: int = 2) -> int:
    return a + b


def report(day: date, *, total: Decimal = Decimal(0), ctx: Context) -> tuple[date, Decimal, Any]:
    return day, total, ctx


async def fetch(url: str) -> dict[str, Any]:
    return {"url": url}


def signature(function: Callable[..., Any]) -> Signature:
    return Signature(function, "shop.task")


def _several(a: int, b: Any, c: str = "c", *, d: bool = True, e: float | None = None) -> None: ...


@given(st.lists(st.integers(0, 3), max_size=4), st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 3)))
def test_a_call_is_bound_as_python_binds_it(args: list[Any], kwargs: dict[str, Any]) -> None:
    plainly = signature(_several)._bound_plainly(args, kwargs)
    try:
        expected = inspect.signature(_several).bind(*args, **kwargs).arguments
    except TypeError:
        assert plainly is None  # the slow way says what is wrong
    else:
        assert plainly is not None
        assert list(plainly.items()) == list(expected.items())


def test_a_plain_call_needs_no_inspect(monkeypatch: pytest.MonkeyPatch) -> None:
    bound = signature(_several)
    monkeypatch.delattr(inspect.Signature, "bind")

    assert bound.bind((1, [2]), {"e": 0.5}) == {"a": 1, "b": [2], "e": 0.5}


def options(function: Callable[..., Any] = add, **given: Any) -> TaskOptions:
    return TaskOptions.of(function, given)


# Names.


class Shop:
    def method(self) -> None: ...

    @classmethod
    def of_class(cls) -> None: ...

    @staticmethod
    def static(a: int) -> None: ...


def numbers() -> Iterator[int]:
    yield 1


async def stream() -> AsyncIterator[int]:
    yield 1


def doubled(function: Callable[[int], int]) -> Callable[[int], int]:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> int:
        return 2 * function(*args, **kwargs)

    return wrapper


@doubled
def decorated(n: int) -> int:
    return n


@functools.lru_cache
def cached(n: int) -> int:
    return n


def test_a_task_is_named_by_its_module_and_function() -> None:
    assert task_name(add) == f"{__name__}.add"
    assert task_name(fetch) == f"{__name__}.fetch"
    assert task_name(json.dumps) == "json.dumps"


def test_a_decorated_function_keeps_its_name() -> None:
    assert task_name(decorated) == f"{__name__}.decorated"
    assert task_name(cached) == f"{__name__}.cached"


@pytest.mark.parametrize(
    ("function", "advice"),
    [
        (lambda: None, "write it as a def"),
        (Shop.method, "write a function that is passed an id"),
        (Shop().method, "write a function that is passed an id"),
        (Shop.of_class, "write a function that is passed an id"),
        (Shop.static, "is defined inside a class; move it"),
        (staticmethod(add), "write a function"),
        (Shop, "is a class; write a function"),
        (len, "write a def that calls it"),
        ("abc".upper, "write a def that calls it"),
        (functools.partial(add, 1), "write a def that calls the function"),
        (numbers, "return a list instead"),
        (stream, "return a list instead"),
        (5, "is not a Python function"),
    ],
    ids=lambda each: re.sub("0x[0-9a-f]+", "", str(each))[:30],
)
def test_what_no_worker_could_call_is_refused_with_what_to_do(function: Any, advice: str) -> None:
    with pytest.raises(TypeError, match=advice):
        task_name(function)
    if function is not Shop.static:
        with pytest.raises(TypeError, match=advice):
            options(function, name="shop.task")


def test_a_function_inside_another_needs_a_name() -> None:
    def inner() -> None: ...

    with pytest.raises(TypeError, match=r"inside a function; move it .* @app.task\(name=...\)"):
        task_name(inner)
    assert options(inner, name="shop.inner").name == "shop.inner"
    assert options(Shop.static, name="shop.static").name == "shop.static"


def test_a_task_is_no_function_for_another(app: Any) -> None:
    with pytest.raises(TypeError, match="is a task already"):
        define(define(add, app), app)


def test_a_name_outside_the_allowed_characters_is_refused() -> None:
    def naive() -> None: ...

    naive.__qualname__ = "naïve"
    with pytest.raises(InvalidName, match=r"give it another: @app.task\(name=...\)"):
        task_name(naive)
    with pytest.raises(InvalidName):
        options(name="no spaces")


SCRIPT = """
from dray.task.options import task_name
def work(): ...
if __name__ == "__main__":
    print(task_name(work))
"""


def test_a_script_counts_under_its_file_name(tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    folder.mkdir()
    (folder / "jobs.py").write_text(SCRIPT)
    (folder / "__main__.py").write_text(SCRIPT)

    def printed(*command: str, typed: str = "") -> str:
        ran = subprocess.run(
            [sys.executable, *command], cwd=tmp_path, input=typed, capture_output=True, text=True, check=True
        )
        return ran.stdout.strip()

    assert printed("shop/jobs.py") == "jobs.work"
    assert printed("-m", "shop.jobs") == "shop.jobs.work"
    assert printed("-m", "shop") == "shop.work"
    assert printed("-c", SCRIPT) == "work"
    assert printed("-", typed=SCRIPT) == "work"


# Options.


def test_the_defaults_are_the_contracts() -> None:
    assert options() == TaskOptions(name=f"{__name__}.add")
    assert options() == TaskOptions(
        name=f"{__name__}.add",
        queue="default",
        priority=None,
        max_attempts=3,
        max_crashes=3,
        timeout=None,
        retry=retry.exponential(),
        keep_args=True,
        redact=(),
        description=None,
        retry_on=(),
        fail_on=(),
        schedule=None,
    )


def test_options_are_kept_as_they_are_used() -> None:
    found = options(
        name="mail.send",
        queue="mail",
        priority=10,
        max_attempts=5,
        max_crashes=1,
        timeout=timedelta(minutes=1),
        retry=30,
        runner="process",
        keep_args=False,
        redact=["a"],
        description="Send one mail",
        retry_on=OSError,
        fail_on=[KeyError, ValueError],
        cron="0 3 * * *",
        tz="Europe/Berlin",
    )

    assert (found.name, found.queue, found.priority, found.timeout, found.runner) == (
        "mail.send", "mail", 10, 60.0, "process",
    )  # fmt: skip
    assert (found.retry, found.retry_on, found.fail_on) == (retry.fixed(30), (OSError,), (KeyError, ValueError))
    assert found.schedule == Rule(cron="0 3 * * *", tz="Europe/Berlin")
    assert options(every=30).schedule == Rule(every_us=30 * SECOND)
    with pytest.raises(FrozenInstanceError):
        found.queue = "other"  # type: ignore[misc]


def test_none_is_as_good_as_nothing() -> None:
    names = ["queue", "priority", "max_attempts", "timeout", "retry", "runner", "redact", "cron"]
    assert TaskOptions.of(add, dict.fromkeys(names)) == options()


def test_the_runner_follows_from_the_function() -> None:
    assert options(add).runner == "thread"
    assert options(fetch).runner == "async"
    assert options(fetch, runner="process").runner == "process"


def slow(attempt: int) -> float:
    return attempt


@pytest.mark.parametrize("policy", [retry.linear(5), slow, retry.fixed(0)], ids=["policy", "function", "fixed"])
def test_a_retry_policy_is_taken_as_it_is(policy: Any) -> None:
    assert options(retry=policy).retry is policy


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"prioritty": 1}, TypeError, r"no option 'prioritty'; did you mean priority\? known are cron, description"),
        ({"max_retries": 1}, TypeError, "did you mean max_attempts"),
        ({"zzz": None}, TypeError, "no option 'zzz'; known are"),
        ({"queue": "a b"}, InvalidName, "queue name 'a b'"),
        ({"queue": 5}, InvalidName, "must be a string"),
        ({"priority": "high"}, TypeError, "priority must be a whole number, not str"),
        ({"priority": 2**31}, ConfigError, "priority must be between"),
        ({"max_attempts": 0}, ConfigError, "max_attempts must be between 1 and"),
        ({"max_attempts": True}, TypeError, "must be a whole number, not bool"),
        ({"max_attempts": 2.0}, TypeError, "must be a whole number, not float"),
        ({"max_crashes": 0}, ConfigError, "max_crashes must be between 1 and"),
        ({"timeout": 0}, ConfigError, "timeout must be more than 0"),
        ({"timeout": -1}, ConfigError, "timeout must be more than 0"),
        ({"timeout": math.nan}, ConfigError, "timeout must be more than 0"),
        ({"timeout": math.inf}, ConfigError, "ten years"),
        ({"timeout": 10**400}, ConfigError, "ten years"),
        ({"timeout": "30"}, TypeError, "timeout must be a number of seconds or a timedelta, not str"),
        ({"retry": -1}, ConfigError, r"retry .* must be between 0"),
        ({"retry": "often"}, TypeError, r"retry \(if not a policy or a function of the attempt\) must be"),
        ({"retry": True}, TypeError, "not bool"),
        ({"retry": retry.exponential}, ConfigError, r"call it, as in retry=dray.exponential\(...\)"),
        ({"runner": "fiber"}, ConfigError, "must be one of thread, async, process, not 'fiber'"),
        ({"runner": "async"}, ConfigError, "runner async cannot run a def that is not async; use thread or process"),
        ({"keep_args": "no"}, TypeError, "keep_args must be True or False, not str"),
        ({"redact": ["token"]}, ConfigError, "redact: 'token' is no parameter; its parameters are a, b"),
        ({"redact": "a"}, TypeError, "redact must be a list of parameter names, not str"),
        ({"description": 5}, TypeError, "description must be a string"),
        ({"description": "a\nb"}, ConfigError, "one line of printable text"),
        ({"description": "x" * 501}, ConfigError, "1 to 500 characters, not 501"),
        ({"retry_on": "OSError"}, TypeError, "retry_on must be a list of exception types"),
        ({"retry_on": [int]}, TypeError, "int'> is none"),
        ({"fail_on": [ValueError()]}, TypeError, "exception types, and ValueError"),
        ({"cron": "* *"}, ConfigError, "cron"),
        ({"cron": "* * * * *", "tz": "Mars/Base"}, ConfigError, "Mars/Base"),
        ({"cron": "* * * * *", "every": 5}, ConfigError, "either cron or every, not both"),
        ({"tz": "UTC"}, ConfigError, "give cron too"),
        ({"every": 0}, ConfigError, "every must be between"),
    ],
    ids=lambda each: re.sub("0x[0-9a-f]+", "", str(each))[:40],
)
def test_an_option_that_cannot_work_is_refused_with_what_it_may_be(
    given: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        options(**given)


def test_a_coroutine_does_not_run_on_threads() -> None:
    with pytest.raises(ConfigError, match="runner thread cannot run an async def; use async or process"):
        options(fetch, runner="thread")


def test_the_error_names_the_task() -> None:
    with pytest.raises(ConfigError, match=r"^task mail.send: timeout must"):
        options(name="mail.send", timeout=0)


def test_redacted_arguments_are_hidden() -> None:
    def send(to: str, **secrets: str) -> None: ...

    assert options(name="a", redact=["a"]).hide({"a": 1, "b": 2}) == {"a": "***", "b": 2}
    assert options(send, name="b", redact=["token"]).hide({"to": "x", "token": 1}) == {"to": "x", "token": "***"}


# Binding a call.


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


# A plain call.


def test_a_plain_call_runs_here_and_now(app: Any) -> None:
    assert define(add, app)(1) == 3
    assert define(decorated, app)(4) == 8
    assert asyncio.run(define(fetch, app)("x")) == {"url": "x"}
    assert app.batches == []


def test_a_plain_call_is_given_a_context_where_it_gives_none(app: Any) -> None:
    local, mine = Context(), object()
    app.context = local
    task: Task[..., Any] = define(report, app)

    assert task(date.min) == (date.min, Decimal(0), local)
    assert task(date.min, ctx=mine) == (date.min, Decimal(0), mine)


def test_a_plain_call_may_give_a_context_of_its_own(app: Any) -> None:
    def function(ctx: Context, a: int = 1, *rest: int, **extra: int) -> tuple[Any, ...]:
        return ctx, a, rest, extra

    local, mine = Context(), Context()
    app.context = local
    task: Task[..., Any] = define(function, app, name="f")

    assert task(5, 6, z=7) == (local, 5, (6,), {"z": 7})
    assert task() == (local, 1, (), {})
    assert task(mine, 5) == (mine, 5, (), {})
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'day'"):
        define(report, app)()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


# Enqueueing.


def test_enqueue_writes_one_job_with_the_tasks_options(app: Any) -> None:
    task = define(add, app, name="shop.add", queue="q", priority=4, max_attempts=5, timeout=9, description="Adds")

    job = task.enqueue(1, b=3)

    assert app.jobs == [
        NewJob(
            id=job.id,
            task="shop.add",
            queue="q",
            args='{"a":1,"b":3}',
            priority=4,
            max_attempts=5,
            timeout=9.0,
            description="Adds",
        )
    ]
    assert app.connections == [None]


def test_enqueue_checks_the_arguments_before_anything_is_written(app: Any) -> None:
    task: Task[..., Any] = define(add, app)
    for args in ((), (1, 2, 3), ("1",), (object(),), (math.nan,)):
        with pytest.raises((TypeError, PayloadError)):
            task.enqueue(*args)
    with pytest.raises(PayloadTooLarge, match="over the limit of 262,144"):
        define(fetch, app).enqueue("x" * 262_144)
    assert app.batches == []


def test_a_coroutine_enqueues_alike(app: Any) -> None:
    task = define(fetch, app, name="fetch")

    async def main() -> None:
        await task.aenqueue("a")
        await task.using(queue="slow").aenqueue("b")
        await task.aenqueue_many([("c",), {"url": "d"}])

    asyncio.run(main())

    assert [(job.queue, job.args) for job in app.jobs] == [
        ("default", '{"url":"a"}'),
        ("slow", '{"url":"b"}'),
        ("default", '{"url":"c"}'),
        ("default", '{"url":"d"}'),
    ]


def test_many_are_one_batch_in_their_order(app: Any) -> None:
    jobs = define(add, app).enqueue_many([(1, 2), {"a": 3}, (5,)])

    assert [len(batch) for batch in app.batches] == [3]
    assert [job.args for job in app.jobs] == ['{"a":1,"b":2}', '{"a":3}', '{"a":5}']
    assert [job.id for job in jobs] == sorted(job.id for job in app.jobs)


def test_none_is_not_even_a_batch(app: Any) -> None:
    assert define(add, app).enqueue_many([]) == []
    assert app.batches == []


@pytest.mark.parametrize("wrong", [5, "ab", [1, 2], (1, 2, 3), {"z": 1}, ("1",)], ids=str)
def test_one_wrong_item_of_many_is_named_and_none_is_written(app: Any, wrong: Any) -> None:
    with pytest.raises((TypeError, PayloadError)) as caught:
        define(add, app, name="shop.add").enqueue_many([(1,), wrong])

    assert caught.value.__notes__ == ["shop.add: in item 1 of enqueue_many; nothing was written"]
    assert app.batches == []


def test_a_task_of_a_coroutine_function_is_told_apart(app: Any) -> None:
    assert isinstance(define(fetch, app), AsyncTask)
    assert not isinstance(define(add, app), AsyncTask)


def test_a_task_looks_like_its_function(app: Any) -> None:
    task = define(add, app, name="shop.add")

    assert (task.__name__, task.__module__, task.__wrapped__) == ("add", __name__, add)  # type: ignore[attr-defined]
    assert repr(task) == "<Task shop.add>"
    assert task.place.startswith(f"{__file__}:")


# Options of one job.

WHEN = datetime(2026, 1, 31, 12, tzinfo=UTC)
PARENT = "01890000-0000-7000-8000-000000000001"


def prepared(**given: Any) -> NewJob:
    return prepare(PARENT, options(add, name="shop.add"), {"a": 1}, JobOptions.of(given))


def test_using_says_how_one_job_is_to_be_run(app: Any) -> None:
    connection = object()
    task = define(add, app, name="shop.add", queue="q", max_attempts=9)

    task.using(
        queue="slow",
        priority=5,
        run_at=WHEN,
        expires_at=WHEN + timedelta(hours=1),
        unique="report:42",
        unique_scope="queued",
        unique_for=60,
        on_conflict="replace",
        max_attempts=1,
        timeout=5,
        after=[Handle(NewJob(id=PARENT, task="x")), PARENT.upper()],
        on_parent_failure="run",
        name="the first: ä",
        tags=["x", "y", "x"],
        connection=connection,
    ).enqueue(1)

    [[written]] = app.batches
    assert written == NewJob(
        id=written.id,
        task="shop.add",
        queue="slow",
        args='{"a":1}',
        priority=5,
        run_at=from_datetime(WHEN),
        expires_at=from_datetime(WHEN) + 3600 * SECOND,
        unique_key="report:42",
        unique_scope="queued",
        unique_us=60 * SECOND,
        on_conflict="replace",
        max_attempts=1,
        timeout=5.0,
        parents=(PARENT,),
        on_parent_failure="run",
        name="the first: ä",
        tags=("x", "y"),
    )
    assert app.connections == [connection]


def test_durations_are_seconds_or_timedeltas() -> None:
    assert prepared(delay=1.5).delay_us == 1_500_000
    assert prepared(delay=timedelta(minutes=1)).delay_us == 60 * SECOND
    assert prepared(expires_in=3600).expires_us == 3600 * SECOND
    assert prepared(timeout=timedelta(seconds=2)).timeout == 2.0


def test_what_is_not_said_is_as_the_task_has_it() -> None:
    nothing = dict.fromkeys(["queue", "priority", "delay", "run_at", "unique", "after", "tags", "connection"])
    assert prepared(**nothing) == prepared() == NewJob(id=PARENT, task="shop.add", args='{"a":1}')
    assert prepared(unique=False) == prepared()


def test_a_time_in_the_past_is_taken() -> None:
    past = datetime(1999, 1, 1, tzinfo=UTC)
    assert prepared(run_at=past).run_at == from_datetime(past)


def test_unique_by_its_arguments_does_not_depend_on_their_order() -> None:
    task = options(name="shop.add")

    def key(args: Mapping[str, Any], of: TaskOptions = task) -> str | None:
        return prepare(PARENT, of, args, JobOptions.of({"unique": True})).unique_key

    same = key({"a": {"x": 1, "y": "é"}, "b": 2})
    assert same == key({"b": 2, "a": {"y": "é", "x": 1}})
    assert same is not None
    assert same.startswith("shop.add:")
    assert len(same) == len("shop.add:") + 64
    assert key({"a": 1}) != key({"a": 2})
    assert key({"a": 1}) != key({"a": 1}, options(name="shop.sub"))


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"countdown": 5}, TypeError, r"using\(\) has no option 'countdown'; did you mean delay\?"),
        ({"quue": "a"}, TypeError, r"did you mean queue\?"),
        ({"queue": ""}, InvalidName, "queue name"),
        ({"priority": 1.5}, TypeError, "whole number"),
        ({"delay": -1}, ConfigError, "delay must be between 0 and"),
        ({"delay": timedelta(seconds=-1)}, ConfigError, "delay must be between 0 and"),
        ({"delay": math.nan}, ConfigError, "delay must be between 0 and"),
        ({"delay": 10**9}, ConfigError, "ten years"),
        ({"delay": "5"}, TypeError, "delay must be a number of seconds or a timedelta"),
        ({"run_at": datetime(2026, 1, 1)}, ConfigError, r"run_at has no time zone.*datetime.now\(UTC\)"),  # noqa: DTZ001
        ({"run_at": "tomorrow"}, TypeError, "run_at must be a datetime, not str"),
        ({"run_at": date(2026, 1, 1)}, TypeError, "run_at must be a datetime, not date"),
        ({"delay": 1, "run_at": WHEN}, ConfigError, "delay and run_at say the same in two ways"),
        ({"expires_at": datetime(2026, 1, 1)}, ConfigError, "expires_at has no time zone"),  # noqa: DTZ001
        ({"expires_in": 0}, ConfigError, "expires_in must be more than 0"),
        ({"expires_in": 1, "expires_at": WHEN}, ConfigError, "expires_at and expires_in say the same"),
        ({"expires_in": 5, "delay": 5}, ConfigError, "expire before it may run"),
        ({"expires_at": WHEN, "run_at": WHEN}, ConfigError, "expire before it may run"),
        ({"unique": ""}, ConfigError, "unique must have 1 to 500 characters"),
        ({"unique": "a\0b"}, ConfigError, "unique .* must be one line"),
        ({"unique": 5}, TypeError, "unique must be a string"),
        ({"unique_scope": "live"}, ConfigError, "unique_scope means nothing without unique"),
        ({"unique": False, "unique_for": 5}, ConfigError, "unique_for means nothing without unique"),
        ({"on_conflict": "replace"}, ConfigError, "on_conflict means nothing without unique"),
        ({"unique": True, "unique_scope": "for ever"}, ConfigError, "unique_scope must be one of live, queued"),
        ({"unique": True, "unique_for": 0}, ConfigError, "unique_for must be more than 0"),
        ({"unique": True, "on_conflict": "drop"}, ConfigError, "must be one of keep, replace, reschedule"),
        ({"max_attempts": 0}, ConfigError, "max_attempts must be between 1"),
        ({"timeout": math.nan}, ConfigError, "timeout must be more than 0"),
        ({"after": ["short"]}, ConfigError, "'short' is no job id; pass the job, or its whole id"),
        ({"after": [5]}, TypeError, "after takes jobs or their ids, not int"),
        ({"after": 5}, TypeError, "after must be a list of jobs"),
        ({"on_parent_failure": "cry"}, ConfigError, "must be one of cancel, run, hold"),
        ({"name": "a\x1bb"}, ConfigError, "name .* must be one line"),
        ({"name": "x" * 201}, ConfigError, "1 to 200 characters"),
        ({"tags": "x"}, TypeError, "tags must be a list of tags, not str"),
        ({"tags": ["a b"]}, InvalidName, "tag name 'a b'"),
        ({"tags": [str(n) for n in range(21)]}, ConfigError, "at most 20 tags, not 21"),
    ],
    ids=lambda each: re.sub("0x[0-9a-f]+", "", str(each))[:40],
)
def test_an_option_of_a_job_that_cannot_work_is_refused(
    given: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        JobOptions.of(given)


def test_a_single_parent_need_not_be_in_a_list() -> None:
    assert prepared(after=PARENT).parents == (PARENT,)
    assert prepared(after=Handle(NewJob(id=PARENT, task="x"))).parents == (PARENT,)


# As a worker sees it.


def test_a_row_becomes_a_call(app: Any) -> None:
    task, context = define(report, app), Context()

    positional, named = task.arguments('{"day":"2026-01-01","total":"9.90"}', context=context)

    assert report(*positional, **named) == (date(2026, 1, 1), Decimal("9.90"), context)


@pytest.mark.parametrize("text", ["{", "[1]", "5", '{"a":NaN}'])
def test_a_row_that_no_code_could_read_is_no_misfit(app: Any, text: str) -> None:
    with pytest.raises(PayloadError):
        define(add, app).arguments(text)


def test_a_result_comes_back_as_it_is_annotated(app: Any) -> None:
    def due(day: date) -> list[date]:
        return [day]

    task = define(due, app, name="due")

    assert task.encode_result([date.min]) == '["0001-01-01"]'
    assert task.decode_result('["0001-01-01"]') == [date.min]


def test_a_result_that_is_not_what_was_annotated_comes_back_as_it_is(app: Any) -> None:
    assert define(add, app).decode_result('"oops"') == "oops"


def test_a_result_that_cannot_be_stored_names_its_path(app: Any) -> None:
    with pytest.raises(PayloadError, match=r"^result.x\[0\]: object is not JSON"):
        define(add, app).encode_result({"x": [object()]})
    with pytest.raises(PayloadTooLarge, match=r"^result: "):
        define(add, app).encode_result("x" * (1 << 20))


# The registry.


def test_tasks_are_found_by_name(app: Any) -> None:
    registry = Registry()
    task, other = define(add, app, name="shop.add"), define(fetch, app, name="fetch")
    registry.register(task)
    registry.register(other)

    assert registry.get("shop.add") is task
    assert registry.names() == ("fetch", "shop.add")
    assert "fetch" in registry
    assert len(registry) == 2
    assert list(registry) == [task, other]


def test_an_unknown_task_is_named_with_those_spelled_alike(app: Any) -> None:
    registry = Registry()
    registry.register(define(add, app, name="mail.send"))

    with pytest.raises(UnknownTask, match=r"no task is named 'mail.sned' here; did you mean mail.send\? Import"):
        registry.get("mail.sned")
    with pytest.raises(UnknownTask, match=r"; 1 other is known\. Import"):
        registry.get("zzz")


@pytest.mark.parametrize(
    ("typed", "meant"), [("send", "mail.send or sms.send"), ("snd", "mail.send or sms.send"), ("fetch", "web.fetch")]
)
def test_the_last_part_of_a_name_is_enough_to_be_told_the_whole(app: Any, typed: str, meant: str) -> None:
    registry = Registry()
    for name in ("sms.send", "web.fetch", "mail.send"):
        registry.register(define(add, app, name=name))

    with pytest.raises(UnknownTask, match=rf"did you mean {meant}\? Import the module that defines it$"):
        registry.get(typed)


def test_two_tasks_under_one_name_are_refused_with_both_places(app: Any) -> None:
    registry = Registry()
    first, second = define(add, app, name="shop.add"), define(decorated, app, name="shop.add")
    registry.register(first)

    with pytest.raises(ValueError, match=r"two tasks are named shop.add") as caught:
        registry.register(second)

    assert f"{first.place} and {second.place}; give one of them another" in str(caught.value)
    assert registry.get("shop.add") is first


def test_a_file_imported_twice_is_recognised(app: Any) -> None:
    code = compile("def work(): ...", "tasks.py", "exec")

    def imported(module: str) -> Task[..., Any]:
        scope: dict[str, Any] = {"__name__": module}
        exec(code, scope)
        return define(scope["work"], app, name="work")

    registry = Registry()
    registry.register(imported("tasks"))

    with pytest.raises(ValueError, match=r"imported twice, as tasks and as shop.tasks"):
        registry.register(imported("shop.tasks"))


def test_at_a_prompt_a_function_may_be_written_anew(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = Registry()
    registry.register(define(add, app))
    again = define(add, app)
    with pytest.raises(ValueError, match="two tasks"):
        registry.register(again)

    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    registry.register(again)

    assert registry.get(again.name) is again


# Retrying.

RNG = random.Random(1)


def test_every_error_is_tried_again_after_the_policys_delay() -> None:
    found = options(retry=5)
    assert next_delay_us(found, 1, ValueError(), RNG) == 5 * SECOND
    assert next_delay_us(options(), 3, ValueError(), RNG) in range(8 * SECOND, 16 * SECOND + 1)


@pytest.mark.parametrize(
    ("given", "error", "again"),
    [
        ({"fail_on": ValueError}, ValueError(), False),
        ({"fail_on": ValueError}, UnicodeError(), False),
        ({"fail_on": ValueError}, OSError(), True),
        ({"retry_on": OSError}, ConnectionError(), True),
        ({"retry_on": OSError}, ValueError(), False),
        ({"retry_on": Exception, "fail_on": KeyError}, KeyError(), False),
        ({"retry_on": [OSError, KeyError]}, KeyError(), True),
    ],
    ids=str,
)
def test_errors_can_be_chosen(given: dict[str, Any], error: Exception, again: bool) -> None:
    assert (next_delay_us(options(retry=0, **given), 1, error, RNG) is not None) == again


def broken(attempt: int) -> float:
    raise KeyError("hm")


def negative(attempt: int) -> float:
    return -1


@pytest.mark.parametrize("policy", [broken, negative], ids=["raises", "answers nonsense"])
def test_a_policy_that_fails_is_reported_and_the_default_is_used(
    policy: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, logger="dray"):
        delay = next_delay_us(options(name="shop.add", retry=policy), 2, ValueError(), RNG)

    assert delay in range(4 * SECOND, 8 * SECOND + 1)
    assert "task shop.add: its retry policy failed after attempt 2; using the default" in caplog.text


# Everything is lazy that may be.


def test_annotations_are_not_looked_at_before_they_are_needed(app: Any) -> None:
    scope: dict[str, Any] = {"__name__": "early"}
    exec("def work(item: 'Late') -> None: ...", scope)
    task = define(scope["work"], app)
    scope["Late"] = date

    task.enqueue(date.min)

    assert decode(app.jobs[0].args) == {"item": "0001-01-01"}
    assert task.arguments(app.jobs[0].args) == ([date.min], {})
