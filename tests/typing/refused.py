"""What type checkers refuse: a marked line without an error fails the test. Checked by pyright, never run."""

# pyright: reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

import dray

app = dray.App("sqlite:///never-opened.db")


@app.task
def add(a: int, b: int = 2) -> int:
    return a + b


@app.task
async def fetch(url: str) -> str:
    return url


@app.task
def context_first(ctx: dray.Context, to: str) -> str:
    return to


add.enqueue()  # pyright: ignore[reportCallIssue]
add.enqueue("1")  # pyright: ignore[reportArgumentType]
add.enqueue(1, 2, 3)  # pyright: ignore[reportCallIssue]
add.enqueue(1, c=3)  # pyright: ignore[reportCallIssue]
add.using(delay=5).enqueue("1")  # pyright: ignore[reportArgumentType]
add.using(dealy=5)  # pyright: ignore[reportCallIssue]
add.using(delay="5")  # pyright: ignore[reportArgumentType]
add.using(unique_scope="sometimes")  # pyright: ignore[reportArgumentType]
text: str = add.enqueue(1).result()  # pyright: ignore[reportAssignmentType]
number: int = fetch.enqueue("x").result()  # pyright: ignore[reportAssignmentType]
fetch.enqueue(7)  # pyright: ignore[reportArgumentType]
context_first.enqueue(7)  # pyright: ignore[reportArgumentType]
context_first.enqueue("ann", 7)  # pyright: ignore[reportCallIssue]
add.enqueue_many([("1", 2)])  # pyright: ignore[reportCallIssue, reportArgumentType]
add.enqueue_many([(1, "2")])  # pyright: ignore[reportCallIssue, reportArgumentType]
add.enqueue_many([(1, 2, 3)])  # pyright: ignore[reportCallIssue, reportArgumentType]
add.delay(1)  # pyright: ignore[reportAttributeAccessIssue]
wf = app.workflow("etl")
wf.add(add, "1")  # pyright: ignore[reportArgumentType]
wf.add(add, 1, "2", step="x")  # pyright: ignore[reportArgumentType]
wf.add(add, 1, 2, 3)  # pyright: ignore[reportArgumentType]
wf.add(context_first, 7, after=[])  # pyright: ignore[reportArgumentType]
wf.add(add.using(on_parent_failure="maybe"), 1)  # pyright: ignore[reportArgumentType]
app.on("finished")  # pyright: ignore[reportArgumentType]
wf.add(fetch, "x", on_parent_failure="maybe")  # pyright: ignore[reportArgumentType]
flag: str = wf.enqueue().job("a", add).result()  # pyright: ignore[reportAssignmentType]
app.wait([add.enqueue(1)], return_when="some")  # pyright: ignore[reportArgumentType]
app.jobs(state="done")  # pyright: ignore[reportArgumentType]
app.schedule("x", add, every=5, misfire="never")  # pyright: ignore[reportArgumentType]
app.schedule("x", add, every=5, overlap="never")  # pyright: ignore[reportArgumentType]
app.task(runner="fibre")  # pyright: ignore[reportArgumentType]
add.using(unique="x", on_conflict="drop")  # pyright: ignore[reportArgumentType]
dray.App(durability="some")  # pyright: ignore[reportArgumentType]
app.task(retries=3)  # pyright: ignore[reportCallIssue]
app.task(queue=3)  # pyright: ignore[reportArgumentType]
app.task(limit="5")  # pyright: ignore[reportArgumentType]
app.task(rate=10)  # pyright: ignore[reportArgumentType]
app.task(key=5)  # pyright: ignore[reportArgumentType]
app.task(key_limit="1")  # pyright: ignore[reportArgumentType]
app.task(key_rate={"1/s": 1})  # pyright: ignore[reportArgumentType]
app.queue("api", limit="5")  # pyright: ignore[reportArgumentType]
app.queue("api", rate=10)  # pyright: ignore[reportArgumentType]
app.queue("api", key="account")  # pyright: ignore[reportCallIssue]
add.using(key=7)  # pyright: ignore[reportArgumentType]
app.enqueue("add", {"a": 1}, key=7)  # pyright: ignore[reportArgumentType]
app.enqueue("add", 1, 2)  # pyright: ignore[reportArgumentType]
app.enqueue("add", {"a": 1}, 2)  # pyright: ignore[reportArgumentType]
app.enqueue("add", a=1)  # pyright: ignore[reportCallIssue]
app.enqueue("add", {"a": 1}, delay="5")  # pyright: ignore[reportArgumentType]
app.worker(processes=2)  # pyright: ignore[reportCallIssue]
dray.Snooze()  # pyright: ignore[reportCallIssue]
