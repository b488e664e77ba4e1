"""Fetches many pages with coroutines, within limits for each host, and reports progress; goes on after a stop.

Its database is the one that DRAY_URL names; else dray.db in the current folder.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta

import dray

app = dray.App(migrate=True)
HOSTS = ("news.example", "shop.example", "wiki.example")  # they stand for web sites
PAGES = [(host, f"/page/{n}") for host in HOSTS for n in range(1, 11)]
requests: Counter[str] = Counter()
open_requests: Counter[str] = Counter()
most_requests: Counter[str] = Counter()
refused: set[str] = set()


async def get(host: str, path: str) -> str:
    requests[host] += 1
    open_requests[host] += 1
    most_requests[host] = max(most_requests[host], open_requests[host])
    await asyncio.sleep(0.01)
    open_requests[host] -= 1
    if path == "/page/7" and host not in refused:
        refused.add(host)
        raise ConnectionError(f"{host}{path}: connection reset")
    return f"{host} {path} " * int(path.rpartition("/")[2])


@app.task(
    queue="pages", key="host", key_limit=2, key_rate="8/s", retry=dray.fixed(0.05), retry_on=OSError, timeout=10
)
async def fetch(host: str, path: str) -> int:
    """Returns how many words a page has."""
    return len((await get(host, path)).split())


@app.task(timeout=600)
async def crawl(ctx: dray.Context, pages: list[tuple[str, str]]) -> int:
    """Enqueues a job for each page, each only once, and adds up what they find."""
    jobs = await fetch.using(unique=True, tags=["crawl"]).aenqueue_many(pages)
    words = 0
    for done, job in enumerate(jobs, 1):
        words += await job.aresult(timeout=60)
        ctx.progress(100 * done / len(jobs), f"{done} of {len(jobs)} pages")
    return words


def main() -> None:
    with app, app.worker(concurrency=8):
        job = crawl.enqueue(PAGES)
        print(f"{job.result(timeout=60)} words")
        print(f"{job.progress.percent:g} %, {job.progress.message}")

        print(f"retried: {sum(each.attempt > 1 for each in app.jobs(task=fetch))} pages")
        for host in HOSTS:
            print(f"{host}: {requests[host]} requests, at most {most_requests[host]} at a time")
        if job.started_at and job.finished_at:
            is_slow = job.finished_at - job.started_at >= timedelta(seconds=1)
            print(f"{'more' if is_slow else 'less'} than a second: each host gets 8 requests in one")


if __name__ == "__main__":
    main()
