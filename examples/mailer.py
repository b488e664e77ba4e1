"""Define a task, enqueue a job and run it in a worker, all in one file.

Its database is the one that DRAY_URL names; else dray.db in the current folder.
"""

from __future__ import annotations

import dray

app = dray.App(migrate=True)


@app.task(max_attempts=5, retry=dray.fixed(0.1))
def send(ctx: dray.Context, to: str) -> str:
    """Send a mail. The first attempt fails, to show a retry."""
    if ctx.attempt == 1:
        raise ConnectionError("the mail server is unavailable")
    ctx.log.info("sent to %s", to)
    return f"sent to {to}"


def main() -> None:
    with app, app.worker(concurrency=4):
        job = send.enqueue("ann@example.com")
        print(job.result(timeout=30))
        for attempt in job.attempts():
            print(f"attempt {attempt.number}: {attempt.outcome}")
        for line in job.logs():
            print(f"log: {line.message}")


if __name__ == "__main__":
    main()
