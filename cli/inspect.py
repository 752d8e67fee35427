"""`kerf inspect`: what each GPU is used by, in gpushare's columns."""

from __future__ import annotations

import argparse

from rich.markup import escape
from rich.table import Table

from cli.ask import ask, connected
from cli.output import err, fits, gib, new_table, out, print_json
from shared.contracts import queries
from shared.contracts.queries import InspectAnswer, InspectGpu, InspectNode, InspectPod, InspectQuery


async def run(args: argparse.Namespace) -> None:
    async with connected(args.nats) as bus:
        answer = await ask(bus, queries.INSPECT.subject, InspectQuery(node=args.node or ""), InspectAnswer)
    if answer.changed:
        err.print(
            "The cluster changed while it was read: each node is right by itself, the sum may not be", style="dim"
        )
    if args.json:
        print_json({"nodes": answer.nodes, "cluster": _total(answer.nodes)})
    elif args.details:
        _details(answer.nodes)
    else:
        _table(answer.nodes)


def _total(nodes: tuple[InspectNode, ...]) -> dict[str, float]:
    allocated = sum(g.allocated_memory_mib for n in nodes for g in n.gpus)
    total = sum(g.memory_mib for n in nodes for g in n.gpus)
    milli = sum(g.allocated_compute_milli for n in nodes for g in n.gpus)
    gpus = sum(len(n.gpus) for n in nodes)
    return {
        "gpus": gpus,
        "memory_mib_allocated": allocated,
        "memory_mib_total": total,
        "memory_percent": round(100 * allocated / total, 1) if total else 0.0,
        "compute_percent": round(milli / (10 * gpus), 1) if gpus else 0.0,
    }


def _table(nodes: tuple[InspectNode, ...]) -> None:
    """A column for each GPU where the terminal is wide enough, else one for all."""
    wide = _columns(nodes)
    out.print(wide if fits(wide) else _narrow(nodes))
    _print_total(nodes)


def _columns(nodes: tuple[InspectNode, ...]) -> Table:
    columns = max((len(n.gpus) for n in nodes), default=0)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("NAME", no_wrap=True)
    table.add_column("IPADDRESS", no_wrap=True)
    for index in range(columns):
        table.add_column(f"GPU{index}(Allocated/Total)", justify="right", no_wrap=True)
    table.add_column("GPU Memory(GiB)", justify="right", no_wrap=True)
    for node in nodes:
        cells = [_cell(gpu) for gpu in node.gpus]
        table.add_row(_name(node), node.address or "-", *cells, *[""] * (columns - len(cells)), _memory(node))
    return table


def _narrow(nodes: tuple[InspectNode, ...]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("NAME", overflow="fold")
    table.add_column("GPU Memory(GiB)", justify="right", no_wrap=True)
    table.add_column("GPUs, each (Allocated/Total)")
    for node in nodes:
        cells = ", ".join(f"{gpu.index}:\u00a0{_cell(gpu)}" for gpu in node.gpus)  # a GPU stays on one line
        table.add_row(_name(node), _memory(node), cells)
    return table


def _cell(gpu: InspectGpu) -> str:
    state = "" if gpu.state == "healthy" else f"\u00a0[red]{gpu.state}[/red]"
    return f"{gib(gpu.allocated_memory_mib)}/{gib(gpu.memory_mib)}{state}"


def _name(node: InspectNode) -> str:
    return node.node if node.synced and node.ready else f"[yellow]{node.node}[/yellow]"


def _memory(node: InspectNode) -> str:
    return f"{gib(sum(g.allocated_memory_mib for g in node.gpus))}/{gib(sum(g.memory_mib for g in node.gpus))}"


def _print_total(nodes: tuple[InspectNode, ...]) -> None:
    total = _total(nodes)
    out.print("-" * 66)
    out.print("Allocated/Total GPU Memory In Cluster:")
    out.print(
        f"{gib(int(total['memory_mib_allocated']))}/{gib(int(total['memory_mib_total']))} GiB "
        f"({total['memory_percent']:g}%), compute {total['compute_percent']:g}%"
    )


def _amounts(pod: InspectPod) -> str:
    """What a pod is guaranteed of a GPU, and what it may use while that is free."""
    memory, compute = f"{gib(pod.memory_mib)} GiB", f"{pod.compute_milli / 10:g}%"
    if pod.memory_limit_mib:
        memory += f" (up to {gib(pod.memory_limit_mib)})"
    if pod.compute_limit_milli:
        compute += f" (up to {pod.compute_limit_milli / 10:g}%)"
    return f"{memory}, {compute}"


def _details(nodes: tuple[InspectNode, ...]) -> None:
    for node in nodes:
        out.print(
            f"\n[bold]NAME:[/bold]       {node.node}\n[bold]IPADDRESS:[/bold]  {node.address or '-'}"
            + ("" if node.synced else "\n[yellow]its agent has not answered this leader yet[/yellow]")
        )
        columns = len(node.gpus)
        table = new_table("NAME", "NAMESPACE", "STATE")
        for gpu in node.gpus:
            table.add_column(f"GPU{gpu.index}(Allocated)", justify="right")
        rows: dict[tuple[str, str, str], list[str]] = {}
        for column, gpu in enumerate(node.gpus):
            for pod in gpu.pods:
                row = rows.setdefault(
                    (pod.name, pod.namespace, f"{pod.state}, {pod.suspension}" if pod.suspension else pod.state),
                    [""] * columns,
                )
                row[column] = _amounts(pod)
        for (name, namespace, state), cells in sorted(rows.items()):
            table.add_row(name, namespace, state, *cells)
        out.print(table)
        for gpu in node.gpus:
            if gpu.state != "healthy":
                out.print(
                    f"GPU{gpu.index} {gpu.uuid} is [red]{gpu.state}[/red]: {escape(gpu.reason or 'no reason given')}"
                )
            beside = [
                (gpu.paused_mib, "of paused pods"),
                (gpu.returning_mib, "on their way back"),
                (gpu.suspended_mib, "given up for a while"),
                (gpu.reserved_mib, "kept for a plan"),
            ]
            if any(mib for mib, _ in beside):
                out.print(f"GPU{gpu.index}: " + ", ".join(f"{gib(mib)} GiB {what}" for mib, what in beside if mib))
            if gpu.foreign_mib:
                out.print(
                    f"GPU{gpu.index} {gpu.uuid}: {gpu.foreign_mib} MiB are foreign, of processes that hold no slice"
                )
        if measured := [gpu for gpu in node.gpus if gpu.to_device_mb_s and gpu.from_device_mb_s]:
            each = (f"GPU{g.index} {g.to_device_mb_s / 1e3:.1f}/{g.from_device_mb_s / 1e3:.1f}" for g in measured)
            out.print(f"Host bandwidth (to/from the GPU, GB/s): {', '.join(each)}")
        allocated, total = sum(g.allocated_memory_mib for g in node.gpus), sum(g.memory_mib for g in node.gpus)
        out.print(
            f"Allocated : {gib(allocated)} ({100 * allocated // total if total else 0}%)\nTotal :     {gib(total)}"
        )
    _print_total(nodes)
