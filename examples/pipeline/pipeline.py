"""A data pipeline as a workflow: extract, then clean and count at the same time, then load.

Its database is the one that DRAY_URL names; else dray.db in the current folder.
"""

from __future__ import annotations

from dataclasses import dataclass

import dray

app = dray.App(migrate=True)

_VALUE = "?" if app.url.startswith("sqlite") else "%s"
INSERT = f"INSERT INTO totals VALUES ({_VALUE}, {_VALUE}, {_VALUE})"


@dataclass
class Sale:
    shop: str
    cents: int


SALES = {"2026-11-18": [Sale("north", 1250), Sale("south", -1), Sale("north", 800), Sale("south", 300)]}


@app.task
def extract(day: str) -> list[Sale]:
    return SALES[day]


@app.task
def clean(ctx: dray.Context) -> list[dict[str, object]]:
    return [sale for sale in ctx.parent_results["extract"] if sale["cents"] >= 0]


@app.task
def count(ctx: dray.Context) -> int:
    return len(ctx.parent_results["extract"])


@app.task
def load(ctx: dray.Context, day: str) -> None:
    """Writes the totals, and completes the job in the same commit: a load never happens twice."""
    totals: dict[str, int] = {}
    for sale in ctx.parent_results["clean"]:
        totals[sale["shop"]] = totals.get(sale["shop"], 0) + sale["cents"]
    with ctx.transaction() as tx:
        tx.execute("CREATE TABLE IF NOT EXISTS totals (day TEXT, shop TEXT, cents INTEGER)")
        for shop, cents in sorted(totals.items()):
            tx.execute(INSERT, (day, shop, cents))
        tx.result = totals


def main() -> None:
    with app, app.worker(concurrency=4):
        day = "2026-11-18"
        wf = app.workflow(f"sales {day}")
        extracted = wf.add(extract, day, step="extract")
        cleaned = wf.add(clean, after=[extracted], step="clean")
        counted = wf.add(count, after=[extracted], step="count")
        wf.add(load, day, after=[cleaned, counted], step="load")
        run = wf.enqueue()

        print(run.wait(timeout=60), run.counts)
        print(f"{run.job('count').result()} sales, {run.job('load').result()}")


if __name__ == "__main__":
    main()
