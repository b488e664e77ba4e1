"""How the jobs of a task get their keys: what can be one, and what is refused when the task is declared."""

# pyright: reportUnknownLambdaType=false

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from typing import Any, Optional

import pytest

import dray
from dray.errors import ConfigError, PayloadError
from dray.task.options import TaskOptions


def sync(account: int, region: str = "eu", token: str = "") -> None: ...


def anything(account: int, *rest: int, **extra: Any) -> None: ...


def with_context(account: int, ctx: dray.Context) -> None: ...


def with_optional_context(account: int, ctx: Optional[dray.Context] = None) -> None: ...  # noqa: UP045


def with_parents(account: int, parent_results: Mapping[str, Any]) -> None: ...


def with_context_of_another_name(account: int, ctx: Ctx) -> None: ...


Ctx = dray.Context


def key(given: Any, function: Callable[..., Any] = sync, /, *, redact: Any = None, **args: Any) -> str | None:
    """The key of a job with these arguments."""
    option = TaskOptions.of(function, {"name": "t", "key": given, "redact": redact}).key
    assert option is not None
    return option.of(json.dumps(args))


def test_a_key_is_made_of_an_argument_of_several_or_by_a_function() -> None:
    assert key("account", account=7) == "7"
    assert key(["account", "region"], account=7, region="u:s\\") == "7:u\\:s\\\\"
    assert key(lambda account, region: f"{region}/{account}", account=7) == "eu/7"
    assert key(lambda **args: str(sorted(args)), account=7) == "['account', 'region', 'token']"
    assert key(lambda: "all", account=7) == "all"
    assert key(lambda account: None, account=7) is None
    assert key("account", account=None) is None
    assert key("owner", anything, account=7, owner="ann") == "ann"


@pytest.mark.parametrize(
    ("given", "function", "message"),
    [
        (
            "acount",
            sync,
            "^task t: key: 'acount' is no argument of the task; its arguments are account, region, token",
        ),
        (["account", "zone"], sync, "'zone' is no argument of the task"),
        ("", sync, "'' is no argument of the task"),
        (lambda zone: zone, sync, "'zone' is no argument of the task"),
        ("ctx", with_context, "^task t: key: 'ctx' is not given by callers; its arguments are account"),
        ("ctx", with_optional_context, "'ctx' is not given by callers"),
        ("ctx", with_context_of_another_name, "'ctx' is not given by callers"),
        (["account", "ctx"], with_context, "'ctx' is not given by callers"),
        (lambda account, ctx: "x", with_context, "'ctx' is not given by callers"),
        ("parent_results", with_parents, "'parent_results' is not given by callers"),
        ("rest", anything, "'rest' is not given by callers"),
    ],
)
def test_only_what_callers_give_can_be_a_key(given: Any, function: Callable[..., Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        key(given, function)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (5, "^task t: key must be the name of an argument, a list of such, or a function, not int"),
        ([], "a list of such, or a function, not list"),
        (["account", 5], "^task t: key must hold names of arguments, and 5 is none"),
        ({"account": 1}, "not dict"),
    ],
)
def test_a_key_that_names_nothing_is_refused(given: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        key(given)


async def later(account: int) -> str:
    return str(account)


class Later:
    async def __call__(self, account: int) -> str:
        return str(account)


def by_position(account: int, /) -> str:
    return str(account)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (later, "^task t: key: the function is async"),
        (Later(), "the function is async"),
        (functools.partial(later), "the function is async"),
        (by_position, "^task t: key: account of the function cannot be given by name"),
        (lambda *args: "x", "args of the function cannot be given by name"),
        (str, "^task t: key: the arguments of <class 'str'> are not known; write a function"),
        (int, "are not known; write a function"),
    ],
)
def test_a_key_function_that_could_not_be_called_is_refused(function: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        key(function)


def test_an_argument_that_is_hidden_is_no_key_but_a_function_may_make_one_of_it() -> None:
    for given in ("token", ["account", "token"]):
        with pytest.raises(ConfigError, match=r"^task t: key: 'token' is redacted, and keys are stored and shown"):
            key(given, redact=["token"])

    assert key("account", account=7, redact=["token"]) == "7"
    assert key(lambda token: str(len(token)), token="hunter2", redact=["token"]) == "7"


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("x" * 10_000, "must have between 1 and 200 characters, not 10000"),
        ("", "must have between 1 and 200 characters, not 0"),
        ("a\nb", "must be one line of printable text"),
        ("\x1b[31m", "must be one line of printable text"),
        ("\u202eq", "must be one line of printable text"),
        ("a\0", "contains a NUL"),
        ("\ud800", "contains a NUL or half a character"),
        (1.5, "must be text or a whole number, not 1.5"),
        (True, "must be text or a whole number, not True"),
        ([1], "must be text or a whole number, not"),
    ],
    ids=ascii,
)
@pytest.mark.parametrize("given", ["region", lambda region: region], ids=["argument", "function"])
def test_a_key_that_cannot_be_stored_or_shown_is_refused_and_the_task_is_named(
    given: Any, value: Any, problem: str
) -> None:
    with pytest.raises(PayloadError, match=f"^key: the key of a job of task t {problem}") as caught:
        key(given, region=value)
    assert str(caught.value).isprintable()


def test_an_error_of_a_key_function_names_the_task() -> None:
    def broken(account: int) -> str:
        raise KeyError("no account")

    with pytest.raises(PayloadError, match=r"the key function of task t raised KeyError\('no account'\)"):
        key(broken, account=7)
