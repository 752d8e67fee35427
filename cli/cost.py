"""`kerf cost`: what the slices of a period cost, and what was idle; as a table, CSV, JSON or a report."""

from __future__ import annotations

import argparse
import csv
import datetime
import sys

from cli.ask import ask, connected
from cli.output import Failure, err, new_table, out, print_json
from shared.contracts import metrics_queries
from shared.contracts.metrics_queries import CostAnswer, CostQuery, CostRow

_CSV_FIELDS = (
    "key",
    "gpu_hours",
    "memory_gib_hours",
    "slices",
    "live",
    "cost",
    "currency",
    "unpriced_gpu_hours",
    "since",
    "until",
)


async def run(args: argparse.Namespace) -> None:
    form = "json" if args.json else args.format
    if form not in ("table", "csv", "json", "report"):
        raise Failure(f"--format {form} is none of table, csv, json, report")
    if args.month and (args.since or args.until):
        raise Failure("name either --month or --since and --until")
    since, until = month(args.month) if args.month else (args.since, args.until)
    async with connected(args.nats) as bus:

        async def of(by: str) -> CostAnswer:
            query = CostQuery(by=by, since=since, until=until, most=args.most)
            return await ask(bus, metrics_queries.COST.subject, query, CostAnswer)

        if form == "report":
            answers = {by: await of(by) for by in dict.fromkeys((args.by, "model"))}
            sys.stdout.write(report(answers))
            return
        answer = await of(args.by)
    if form == "json":
        print_json(answer)
    elif form == "csv":
        _csv(answer)
        if answer.more:
            every = len(answer.rows) + answer.more
            err.print(f"[yellow]{answer.more} more rows are left out; --most {every} has them[/yellow]")
    else:
        _table(answer, args.by)


def month(text: str) -> tuple[str, str]:
    """The first day of a month, and of the next. Raises Failure where it is none."""
    try:
        first = datetime.datetime.strptime(text, "%Y-%m").replace(tzinfo=datetime.UTC)
        following = (first + datetime.timedelta(days=32)).replace(day=1)
    except (ValueError, OverflowError):
        raise Failure(f"--month {text} is no month; write it as 2026-11") from None
    return first.date().isoformat(), following.date().isoformat()


def _csv(answer: CostAnswer) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(_CSV_FIELDS)
    for row in answer.rows:
        writer.writerow((
            row.key, f"{row.gpu_seconds / 3600:.6f}", f"{row.memory_mib_seconds / 1024 / 3600:.6f}", row.slices,
            row.live, "" if row.cost is None else f"{row.cost:.6f}", answer.currency,
            f"{row.unpriced_gpu_seconds / 3600:.6f}", answer.since, answer.until,
        ))  # fmt: skip


def _table(answer: CostAnswer, by: str) -> None:
    out.print(f"{answer.since} to {answer.until}", highlight=False)
    head = _head(answer, by.upper())
    table = new_table(*head, right=head[1:])
    for row in answer.rows:
        table.add_row(*_cells(row, answer))
    out.print(table)
    for line in _notes(answer):
        out.print(line, highlight=False)


def _head(answer: CostAnswer, key: str) -> list[str]:
    return [key, "GPU HOURS", "GiB HOURS", "SLICES", *([answer.currency] if answer.currency else [])]


def _cells(row: CostRow, answer: CostAnswer) -> list[str]:
    cells = [
        row.key or "(without)",
        f"{row.gpu_seconds / 3600:.2f}",
        f"{row.memory_mib_seconds / 1024 / 3600:.2f}",
        str(row.slices),
    ]
    return cells + (["no price" if row.cost is None else f"{row.cost:.2f}"] if answer.currency else [])


def _notes(answer: CostAnswer) -> list[str]:
    """Capacity, and what the rows leave out."""
    notes = []
    if (capacity := answer.capacity) is not None:
        for name, seconds, cost in (
            ("allocated", capacity.allocated_gpu_seconds, capacity.allocated_cost),
            ("idle", capacity.idle_gpu_seconds, capacity.idle_cost),
        ):
            price = f", {cost:.2f} {answer.currency}" if cost is not None else ""
            notes.append(f"{name}: {seconds / 3600:.2f} GPU hours{price}")
        notes[-1] += f"; stranded of it: {capacity.stranded_gpu_seconds / 3600:.2f} GPU hours"
    unpriced = sum(row.unpriced_gpu_seconds for row in answer.rows)
    if answer.currency and unpriced:
        notes.append(
            f"without a price: {unpriced / 3600:.2f} GPU hours; add their models or a default to the price file"
        )
    if not answer.currency:
        notes.append("no price file is set (setting `prices` of the metrics service)")
    if answer.more:
        notes.append(f"{answer.more} more rows (--most)")
    return notes


def report(answers: dict[str, CostAnswer]) -> str:
    """A report in Markdown: a table for each answer, then capacity."""
    first = next(iter(answers.values()))
    lines = [f"# GPU usage from {first.since[:10]} to {first.until[:10]}", ""]
    for by, answer in answers.items():
        head = _head(answer, by.capitalize())
        lines += [f"## By {by}", "", f"| {' | '.join(head)} |", f"|---|{'---:|' * (len(head) - 1)}"]
        lines += [
            f"| {' | '.join(cell.replace('|', '&#124;') for cell in _cells(row, answer))} |" for row in answer.rows
        ]
        lines.append("")
    lines += ["## Capacity", "", *(f"- {note}" for note in _notes(first)), ""]
    lines.append("A slice counts by the larger of its memory part and its compute part of a GPU. Times are UTC.")
    return "\n".join(lines) + "\n"
