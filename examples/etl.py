"""A workflow of 50 downloads and a load, in which one download fails: tolerated first, then retried.

Its database is the one that DRAY_URL names; else dray.db in the current folder.
"""

from __future__ import annotations

import dray

app = dray.App(migrate=True)
down = {7}  # the pages that cannot be reached


@app.task(max_attempts=2, retry=dray.fixed(0.05))
def download(n: int) -> int:
    """Return the size of a page."""
    if n in down:
        raise ConnectionError(f"page {n} is down")
    return 1000 + n


@app.task
def load(parent_results: dict[str, int]) -> int:
    """Load the pages that arrived, and return how many they were."""
    return sum(name.startswith("page-") for name in parent_results)


def main() -> None:
    with app, app.worker(concurrency=4):
        wf = app.workflow("etl")
        pages = [wf.add(download, n, step=f"page-{n}") for n in range(50)]
        wf.add(load, after=pages, step="load", on_parent_failure="run")  # the load tolerates failed downloads
        run = wf.enqueue()

        print(f"{run.wait(timeout=60)}: loaded {run.job('load').result()} pages, {run.counts['failed']} failed")
        for job in app.jobs(workflow=run, state="failed"):
            print(f"{job.step}: {job.error}")

        down.clear()
        run.retry_failed()
        run.job("load").retry()  # it waits for the page that is downloaded again
        print(f"{run.wait(timeout=60)}: loaded {run.job('load').result()} pages")


if __name__ == "__main__":
    main()
