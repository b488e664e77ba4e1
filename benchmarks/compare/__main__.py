"""Measures Dray beside its peers and writes compare.json, compare.md and compare.svg.

See `measure.py` for what is measured. Peers that cannot be installed, and those whose store cannot be started, are
named and left out.
"""

from __future__ import annotations

import argparse
import json
import os
from contextlib import ExitStack
from pathlib import Path

from benchmarks.compare import table
from benchmarks.compare.entrants import ENTRANTS, Entrant
from benchmarks.compare.environment import Environment, NotInstalled, base_python
from benchmarks.compare.measure import Failed, Size, measure
from benchmarks.compare.plot import plot
from benchmarks.compare.report import MEASURES, Report, Row
from benchmarks.compare.stores import STORES, NoStore, Store
from benchmarks.processes import run_until_stopped

RESULTS = Path(__file__).parents[1] / "results"
Field = list[tuple[Entrant, Row]]  # those that are measured, each with its row of the report
_QUICK = Size(jobs=300, singles=100, samples=10, drain_limit=10, pickup_limit=5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m benchmarks.compare")
    parser.add_argument("--rounds", type=int, default=3, help="how often everything is measured (3)")
    parser.add_argument("--only", action="append", metavar="NAME", help="a queue or a store; may be given again")
    parser.add_argument("--jobs", type=int, default=30_000, help="jobs of a drain and of a bulk enqueue (30,000)")
    parser.add_argument("--quick", action="store_true", help="300 jobs, one round: to see that it runs")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder to write to (benchmarks/results)")
    parser.add_argument("--python", help="the Python that all queues run on; lilota, litequeue and oban need 3.12")
    given = parser.parse_args()
    size = _QUICK if given.quick else Size(given.jobs, min(given.jobs, 2_000), 200, drain_limit=20, pickup_limit=60)
    chosen = [entrant for entrant in ENTRANTS if is_chosen(entrant, given.only)]
    if not chosen:
        parser.error(f"--only: there is {', '.join(sorted({each.name for each in ENTRANTS} | set(STORES)))}")
    with ExitStack() as stack:
        report = Report(machine="", jobs=size.jobs, singles=size.singles)
        opened = open_stores(chosen, report, stack)
        peers = Environment(given.python or base_python())
        field = install(peers, chosen, opened, report)
        report.machine = machine(peers, opened)
        print(report.machine)
        for number in range(1 if given.quick else given.rounds):
            run_round(number + 1, peers, field, opened, size)
            write(report, given.results)


def is_chosen(entrant: Entrant, only: list[str] | None) -> bool:
    return not only or any(name.lower() in (entrant.name.lower(), entrant.store.lower()) for name in only)


def open_stores(chosen: list[Entrant], report: Report, stack: ExitStack) -> dict[str, Store]:
    opened: dict[str, Store] = {}
    for name, opener in STORES.items():
        names = [entrant.name for entrant in chosen if entrant.store == name]
        if not names:
            continue
        try:
            opened[name] = stack.enter_context(opener())
        except NoStore as error:
            _leave_out(report, f"{', '.join(names)} on {name}: {error}.")
    return opened


def install(peers: Environment, chosen: list[Entrant], opened: dict[str, Store], report: Report) -> Field:
    """Leaves out those that cannot be installed."""
    field: Field = []
    for entrant in chosen:
        if entrant.store not in opened:
            continue
        try:
            version = peers.install(entrant)
        except NotInstalled as error:
            _leave_out(report, f"{entrant.title}: not installed: {error}.")
            continue
        row = Row(entrant.name, entrant.store, version, entrant.settings, entrant.guarantees)
        report.rows.append(row)
        field.append((entrant, row))
    return field


def _leave_out(report: Report, sentence: str) -> None:
    print(f"left out: {sentence}", flush=True)
    report.left_out.append(sentence)


def machine(peers: Environment, opened: dict[str, Store]) -> str:
    python, sqlite = peers.versions()
    servers = [f"{name} {store.version or sqlite}" for name, store in opened.items()]
    return (
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the start, Python {python}, {', '.join(servers)}"
    )


def run_round(number: int, peers: Environment, field: Field, opened: dict[str, Store], size: Size) -> None:
    print(f"\nround {number}", flush=True)
    for entrant, row in field:
        try:
            found = measure(entrant, peers.python, opened[entrant.store], size)
        except Failed as error:
            row.failures.append(str(error))
            print(f"  {entrant.title:<26} FAILED {error}", flush=True)
            continue
        row.rounds.append(found)
        told = [f"{text.partition(',')[0]} {table.number(getattr(found, name))}" for name, text in MEASURES.items()]
        print(f"  {entrant.title:<26} {'   '.join(told)}", flush=True)


def write(report: Report, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "compare.json").write_text(json.dumps(report.as_json(), indent=2) + "\n")
    (folder / "compare.md").write_text(table.markdown(report))
    (folder / "compare.svg").write_text(plot(report))


if __name__ == "__main__":
    run_until_stopped(main)
