"""The App and its tasks. The tests never touch this file, nor the database that it names."""

from __future__ import annotations

from datetime import timedelta

import dray

app = dray.App("sqlite:////srv/shop/jobs.db")
outbox: list[str] = []  # stands for a mail server


@app.task(max_attempts=5, retry=dray.exponential(base=60))
def send(ctx: dray.Context, to: str, subject: str) -> None:
    """Sends a mail. The server is away at first, to have something to test."""
    if ctx.attempt < 3:
        raise ConnectionError("the mail server is away")
    ctx.log.info("sent to %s", to)
    outbox.append(f"{to}: {subject}")


@app.task
def charge(ctx: dray.Context, customer: int, cents: int) -> None:
    """Books a payment exactly once: the row and the job's end are one commit. The result is how many rows."""
    with ctx.transaction() as tx:
        tx.execute("CREATE TABLE IF NOT EXISTS payments (job text, customer integer, cents integer)")
        tx.execute(f"INSERT INTO payments VALUES ('{ctx.job_id}', {customer:d}, {cents:d})")
        tx.result = tx.execute(f"SELECT count(*) FROM payments WHERE job = '{ctx.job_id}'").fetchone()[0]


@app.task
def remind(to: str) -> None:
    outbox.append(f"{to}: you have not paid yet")


@app.task(cron="0 3 * * *")
def nightly() -> None:
    outbox.append("report")


def sign_up(name: str) -> None:
    """What a web handler would call."""
    send.enqueue(f"{name}@example.com", subject="Welcome")
    remind.using(delay=timedelta(days=7)).enqueue(f"{name}@example.com")
