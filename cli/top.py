"""`kerf top`: the cluster in figures, and which pods use it."""

from __future__ import annotations

import argparse

from cli.ask import ask, connected
from cli.output import new_table, out, print_json
from shared.contracts import metrics_queries, queries
from shared.contracts.metrics_queries import UsageAnswer, UsageQuery
from shared.contracts.queries import StatusAnswer, StatusQuery

SHOWN = 20
"""Of the suspended pods."""


async def run(args: argparse.Namespace) -> None:
    async with connected(args.nats) as bus:
        status = await ask(bus, queries.STATUS.subject, StatusQuery(suspended=SHOWN), StatusAnswer)
        usage = await ask(bus, metrics_queries.USAGE.subject, UsageQuery(by=args.by), UsageAnswer)
    if args.json:
        print_json({"status": status, "usage": usage.rows, "usage_since": usage.since})
        return
    show(status)
    show_suspended(status)
    if usage.since:
        out.print(f"  used since {usage.since}, when the first slice began that the usage book still has:")
    numbers = ("GPU HOURS", "MEMORY GiB HOURS", "SLICES", "LIVE")
    table = new_table(args.by.upper(), *numbers, right=numbers)
    for row in usage.rows:
        table.add_row(
            row.key,
            f"{row.gpu_seconds / 3600:.2f}",
            f"{row.memory_mib_seconds / 1024 / 3600:.2f}",
            str(row.slices),
            str(row.live),
        )
    out.print(table)


def percent(part: int, whole: int) -> float:
    return round(100 * part / whole, 2) if whole else 0.0


def show(s: StatusAnswer) -> None:
    out.print(f"[bold]term {s.term}[/bold] led by {s.holder}: {s.nodes} nodes ({s.synced_nodes} synced), {s.gpus} GPUs")
    out.print(
        f"  allocated: compute {percent(s.gpu_milli_allocated, s.gpu_milli_total)} %, memory "
        f"{percent(s.gpu_memory_mib_allocated, s.gpu_memory_mib_total)} %, fragments "
        f"{percent(s.fragmentation_milli, s.gpu_milli_total)} %"
    )
    out.print(
        f"  pods: {s.pods_bound} bound, {s.pods_holding} being bound, {s.pods_waiting} waiting, {s.pods_gated} "
        f"gated, {s.pods_leaving} leaving"
    )
    out.print(
        f"  decisions: {s.decisions}, no place found {s.rejections} times, p50 {s.decide_us_p50:.0f} µs, p99 "
        f"{s.decide_us_p99:.0f} µs"
    )
    if s.double_bookings:
        out.print(f"  [red]{s.double_bookings} GPUs are overbooked[/red]")


def show_suspended(s: StatusAnswer) -> None:
    if not s.pods_suspended:
        return
    room = f"; hosts hold {s.on_host_mib / 1024:.1f} of {s.host_mib / 1024:.1f} GiB" if s.host_mib else ""
    out.print(f"  suspended: {s.pods_suspended} pods{room}; kerf why and kerf when say more of each")
    head = ("SUSPENDED", "NODE", "ACTION", "FOR", "THE TURN OF", "GPU HOURS", "LEVEL", "")
    table = new_table(*head, right=("FOR", "GPU HOURS", "LEVEL"))
    for pod in s.suspended:
        table.add_row(
            f"{pod.namespace}/{pod.name}",
            pod.node,
            pod.action,
            f"{pod.for_s} s" if pod.since else "",
            pod.turn_of,
            f"{pod.gpu_seconds / 3600:.2f}",
            "" if pod.level is None else str(pod.level),
            "idle" if pod.idle else "",
        )
    out.print(table)
    if len(s.suspended) < s.pods_suspended:
        out.print(f"  and {s.pods_suspended - len(s.suspended)} more")
