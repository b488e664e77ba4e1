"""What type checkers accept, and which types they infer. Checked by pyright and mypy, never run."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Literal, assert_type

import dray
from dray import Context, Job, Task, testing

app = dray.App("sqlite:///never-opened.db")


@app.task
def add(a: int, b: int = 2) -> int:
    return a + b


@app.task(queue="mail", max_attempts=5, retry=dray.exponential(base=2))
async def fetch(url: str, *, retries: int = 0) -> dict[str, str]:
    return {"url": url * retries}


@app.task()
def context_first(ctx: Context, to: str, n: int = 1) -> str:
    return to * n


@app.task
async def context_first_async(ctx: dray.Context, to: str) -> str:
    return to


@app.task(name="mail.send")
def context_last(to: str, ctx: dray.Context) -> None: ...


@app.task
async def context_last_async(to: str, n: int, ctx: Context) -> bool:
    return to == str(n)


@app.task
def context_by_keyword(to: str, *, context: Context) -> float:
    return float(to)


@app.task
def context_with_a_default(to: str, ctx: Context | None = None) -> float:
    return float(to)


@app.task
def anything(data: Any, n: int) -> int:
    return n


@app.middleware
def timed(ctx: Context, call: Callable[[], Any]) -> Any:
    return call()


@app.middleware
async def atimed(ctx: Context, call: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    return await call()


@app.on("failed")
@app.on("retried")
def alert(job: Job[Any], error: Any = None) -> None: ...


def wait_for(jobs: Sequence[Job[object]]) -> None: ...


@app.task(limit=5, rate=["10/s", "1000/day"], key=["account", "region"], key_limit=1, key_rate="1/s")
def sync(account: int, region: str) -> int:
    return account


def account_key(account: int) -> str:
    return f"acct:{account}"


@app.task(key=account_key, rate="10/s")
def by_function(account: int) -> int:
    return account


# A plain call keeps its type.
assert_type(add(1, 2), int)
fetching: Coroutine[Any, Any, dict[str, str]] = fetch("x")
assert_type(context_first("ann", n=2), str)
assert_type(context_first(testing.context(attempt=3), "ann", n=2), str)

# The arguments are those of the function, the result has its return type.
assert_type(add.enqueue(1), Job[int])
assert_type(add.enqueue(1, b=2).result(timeout=5), int)
assert_type(add.enqueue_many([(1, 2), {"a": 1}]), list[Job[int]])
assert_type(add.using(delay=5, tags=["x"]).enqueue(1, 2).result(), int)
assert_type(fetch.enqueue("x", retries=1).result(), dict[str, str])
assert_type(fetch.using(unique=True).enqueue("x").result(), dict[str, str])
assert_type(sync.using(key="acct:7").enqueue(7, region="eu").result(), int)
assert_type(by_function.enqueue(7).result(), int)

# The worker fills in a Context: callers do not pass it.
assert_type(context_first.enqueue("ann", n=2).result(), str)
assert_type(context_first_async.enqueue("ann").result(), str)
assert_type(context_last.enqueue("ann").result(), None)
assert_type(context_last_async.enqueue("ann", n=1).result(), bool)
assert_type(context_by_keyword.enqueue("1").result(), float)  # not mypy
assert_type(context_with_a_default.enqueue("1").result(), float)
assert_type(anything.enqueue({"x": 1}, 2).result(), int)  # not mypy

# Steps of workflows, and the jobs of an enqueued one.
wf = app.workflow("etl")
first = wf.add(add, 1, step="first")
wf.add(add, 1, 2, after=[first], on_parent_failure="run")
wf.add(fetch, url="x", after=first)
wf.add(context_first.using(queue="mail"), "ann", 2, after="first", pass_parent_results=False)
wf.add(context_last, "ann")
run = wf.enqueue()
assert_type(run.job("first", add).result(), int)
assert_type(run.job("fetch", fetch), Job[dict[str, str]])
assert_type(run.job("first"), Job[Any])
assert_type(run.wait(), Literal["running", "waiting", "failed", "cancelled", "completed"])

# Many calls, waits and choices.
assert_type(context_first.enqueue_many((name, 1) for name in ("ann", "bob")), list[Job[str]])
assert_type(context_last.enqueue_many([("ann",), {"to": "bob"}]), list[Job[None]])
ended, pending = app.wait(add.enqueue_many([(1,), (2,)]), timeout=5, return_when="first")
assert_type(ended[0].result(), int)
if add.enqueue(1).wait(timeout=5) == "completed":
    app.jobs(state="succeeded")
app.jobs(state=["queued", "failed"])
app.schedule("nightly", add, cron="0 3 * * *", misfire="last", overlap="skip", args={"a": 1})
dray.App(durability=app.durability)

# By name there is no type information.
assert_type(app.enqueue("mail.send", {"to": "ann"}, queue="mail"), Job[Any])
assert_type(app.job("…"), Job[Any])

# Handles and tasks can be passed as arguments.
wait_for([add.enqueue(1), fetch.enqueue("x")])
task: Task[..., Any] = add


async def in_a_coroutine() -> None:
    assert_type(await add.aenqueue(1), Job[int])
    assert_type(await add.aenqueue_many([(1, 2)]), list[Job[int]])
    assert_type((await app.await_([await add.aenqueue(1)])).ended, list[Job[int]])
    assert_type(await (await fetch.aenqueue("x")).aresult(), dict[str, str])
    assert_type(await context_first.using(priority=1).aenqueue("ann"), Job[str])
    assert_type(await context_first_async(testing.context(), "ann"), str)
    assert_type(await fetch("x"), dict[str, str])


with app.worker(queues=["mail", "default"], concurrency=8) as worker:
    assert_type(worker.id, str)
