"""`kerf queues`: what each queue has, may have and waits for."""

from __future__ import annotations

import argparse

from rich.markup import escape
from rich.table import Table

from cli.ask import ask, connected
from cli.output import err, new_table, out, print_json
from shared.contracts import queries
from shared.contracts.queries import QueuesAnswer, QueuesQuery, QueueStanding


async def run(args: argparse.Namespace) -> None:
    async with connected(args.nats) as bus:
        answer = await ask(bus, queries.QUEUES.subject, QueuesQuery(), QueuesAnswer)
    if args.json:
        print_json(answer)
        return
    if answer.invalid:
        err.print(f"[red]ConfigMap kerf-policy is not in force as it is written: {escape(answer.invalid)}[/red]")
    if not answer.queues:
        out.print(
            "There are no queues: pods go by priority and age. Queues are made by key queues.yaml of ConfigMap "
            "kerf-policy in kerf-system"
        )
        return
    out.print(table(answer.queues))


def table(queues: tuple[QueueStanding, ...]) -> Table:
    """GPUs are in whole and parts of one; children are listed below their parents."""
    numbers = ("GPUS", "GUARANTEED", "LIMIT", "WEIGHT", "PRIORITY", "WAITING")
    made = new_table("QUEUE", *numbers, right=numbers)
    depth: dict[str, int] = {}
    for queue in queues:
        depth[queue.name] = depth.get(queue.parent, -1) + 1
        used = _gpus(queue.gpu_milli_used)
        if queue.gpu_milli_used > queue.gpu_milli_guaranteed:
            used = f"[yellow]{used}[/yellow]"
        if queue.gpu_milli_reserved:
            used += f" + {_gpus(queue.gpu_milli_reserved)} kept"
        limit = "" if queue.gpu_milli_limit is None else _gpus(queue.gpu_milli_limit)
        made.add_row(
            "  " * depth[queue.name] + escape(queue.name),
            used,
            _gpus(queue.gpu_milli_guaranteed),
            limit,
            f"{queue.weight:g}",
            str(queue.priority),
            str(queue.waiting),
        )
    return made


def _gpus(milli: int) -> str:
    return f"{milli / 1000:g}"
