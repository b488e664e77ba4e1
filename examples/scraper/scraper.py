"""Fetches many pages with coroutines, reports progress, and can be stopped and started again.

Usage: python scraper.py [URL]   (default: a SQLite file in the current directory)
"""

from __future__ import annotations

import asyncio
import sys

import dray

app = dray.App(sys.argv[1] if len(sys.argv) > 1 else None, migrate=True)
SITE = {f"/page/{n}": f"page {n} " * n for n in range(1, 31)}  # stands for a web site
seen: dict[str, int] = {}


async def get(path: str) -> str:
    await asyncio.sleep(0.001)
    if path == "/page/13" and path not in seen:
        seen[path] = 1
        raise ConnectionError(f"{path}: connection reset")
    return SITE[path]


@app.task(queue="pages", max_attempts=5, retry=dray.fixed(0.05), retry_on=OSError, timeout=10)
async def fetch(path: str) -> int:
    """Returns how many words a page has."""
    return len((await get(path)).split())


@app.task(timeout=600)
async def crawl(ctx: dray.Context, paths: list[str]) -> int:
    """Enqueues a job for each page, each only once, and adds up what they find."""
    jobs = [await fetch.using(unique=f"fetch:{path}", tags=["crawl"]).aenqueue(path) for path in paths]
    words = 0
    for done, job in enumerate(jobs, 1):
        words += await job.aresult(timeout=60)
        ctx.progress(100 * done / len(jobs), f"{done} of {len(jobs)} pages")
    return words


def main() -> None:
    with app, app.worker(concurrency=8):
        job = crawl.enqueue(list(SITE))
        print(f"{job.result(timeout=60)} words")
        print(f"{job.progress.percent:g} %, {job.progress.message}")
        retried = [each for each in app.jobs(task=fetch) if each.attempt > 1]
        print(f"retried: {', '.join(str((each.args or {})['path']) for each in retried)}")


if __name__ == "__main__":
    main()
