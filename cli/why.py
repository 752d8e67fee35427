"""`kerf why POD`: why a pod is where it is, or nowhere, and what would help."""

from __future__ import annotations

import argparse

from rich.markup import escape
from rich.table import Table

from cli.ask import ask, connected, given
from cli.output import out, print_json
from shared.contracts import queries
from shared.contracts.explain import NodeExplanation, PodExplanation
from shared.contracts.queries import ExplainAnswer, WhyQuery


async def why(args: argparse.Namespace) -> None:
    namespace, _, name = args.pod.rpartition("/")
    query = WhyQuery(namespace=namespace or args.namespace, name=name, max_nodes=args.nodes)
    async with connected(args.nats) as bus:
        answer = await ask(bus, queries.WHY.subject, query, ExplainAnswer)
    _show(answer, json=args.json)


def _show(answer: ExplainAnswer, *, json: bool) -> None:
    explanation = given(answer.explanation)
    if json:
        print_json(explanation)
    else:
        show(explanation)


_COLOURS = {
    "bound": "green",
    "holding": "green",
    "would-fit": "green",
    "waiting": "yellow",
    "would-wait": "yellow",
    "refused": "red",
}


def show(e: PodExplanation) -> None:
    out.print(
        f"[bold]{e.namespace}/{e.name}[/bold]  [{_COLOURS.get(e.state, 'cyan')}]{e.state}[/]"
        + (f" for {e.waiting_s:.0f} s, {e.ahead} pods before it" if e.waiting_s else "")
    )
    out.print(f"  {e.sentence}", markup=False)
    if e.second:
        out.print(f"  Were it placed again now: {e.second}", markup=False)
    if e.helps:
        out.print("\n[bold]What would help[/bold]")
        for help_ in e.helps:
            out.print(f"  • {help_}", markup=False)
    if e.candidates:
        table = Table(
            box=None,
            pad_edge=False,
            header_style="bold",
            title="Best nodes now" if e.state != "bound" else "Best nodes for such a pod now",
            title_justify="left",
        )
        for column in ("NODE", "SCORE", "BECAUSE"):
            table.add_column(column)
        for candidate in e.candidates[:5]:
            table.add_row(
                candidate.node, str(candidate.total), ", ".join(f"{k} {v}" for k, v in candidate.scores.items())
            )
        out.print(table)
    for node in e.nodes[:5]:
        _node(node)


def _node(node: NodeExplanation) -> None:
    out.print(f"\n[bold]{node.node}[/bold]: " + escape("; ".join(r.sentence for r in node.reasons)))
    for gpu in node.gpus:
        holders = f"  held by {', '.join(gpu.holders)}" if gpu.holders else ""
        kept = f"  kept for {', '.join(gpu.kept_for)}" if gpu.kept_for else ""
        out.print(
            f"  GPU {gpu.index} {gpu.model}: {gpu.free_memory_mib} MiB and {gpu.free_compute_milli / 10:g} % free"
            + (f", {gpu.missing}" if gpu.missing else ", fits")
            + holders
            + kept,
            markup=False,
        )
