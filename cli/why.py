"""`kerf why POD`: why a pod is where it is, or nowhere, and what would help."""

from __future__ import annotations

import argparse
import re

from rich.markup import escape
from rich.table import Table

from cli.ask import ask, connected, given
from cli.output import out, print_json, say
from shared.contracts import queries
from shared.contracts.explain import NodeExplanation, PodExplanation
from shared.contracts.queries import ExplainAnswer, WhyQuery
from shared.model.units import format_mib


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
_FREE = re.compile(r", [\d.]+ (?:MiB|GiB|%) free(?: of [\d.]+ [MG]iB)?")
_NAMED = 5
"""How many nodes of which the same is said are named."""


def show(e: PodExplanation) -> None:
    out.print(
        f"[bold]{escape(f'{e.namespace}/{e.name}')}[/bold]  [{_COLOURS.get(e.state, 'cyan')}]{e.state}[/]"
        + (f" for {e.waiting_s:.0f} s, {_count(e.ahead, 'pod')} before it" if e.waiting_s else "")
    )
    # The sentence of Events ends with the first advice, which is listed below.
    sentence = e.sentence.replace(f". What would help: {e.helps[0]}", "") if e.helps else e.sentence
    say(sentence, indent="  ")
    if e.second:
        say(f"Were it placed again now: {e.second}", indent="  ")
    if e.helps:
        out.print("\n[bold]What would help[/bold]")
        for help_ in dict.fromkeys(e.helps):
            say(f"• {help_}", indent="  ", hanging="    ")
    if e.candidates:
        table = Table(
            box=None,
            pad_edge=False,
            header_style="bold",
            title="Best nodes now" if e.state != "bound" else "Best nodes for such a pod now",
            title_justify="left",
        )
        for column in ("NODE", "SCORE", "BECAUSE"):
            table.add_column(column, no_wrap=column == "SCORE", overflow="fold")
        for candidate in e.candidates[:5]:
            table.add_row(
                candidate.node, str(candidate.total), ", ".join(f"{k} {v}" for k, v in candidate.scores.items())
            )
        out.print(table)
    alike: dict[tuple[str, ...], list[NodeExplanation]] = {}
    for node in e.nodes:
        alike.setdefault((*(r.sentence for r in node.reasons), *_gpu_lines(node)), []).append(node)
    for nodes in alike.values():
        _nodes(nodes)


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _nodes(nodes: list[NodeExplanation]) -> None:
    """Nodes of which the same is to be said, once."""
    names = ", ".join(node.node for node in nodes[:_NAMED]) + (
        f" and {len(nodes) - _NAMED} more" if len(nodes) > _NAMED else ""
    )
    out.print()
    say(f"{names}: " + "; ".join(r.sentence for r in nodes[0].reasons))
    for line in _gpu_lines(nodes[0]):
        say(line, indent="  ", hanging="    ")


def _gpu_lines(node: NodeExplanation) -> list[str]:
    """A line for each group of GPUs in the same state."""
    alike: dict[tuple[str, str], list[int]] = {}
    for gpu in node.gpus:
        free = f"{format_mib(gpu.free_memory_mib)} and {gpu.free_compute_milli / 10:g} % free"
        state = f"{free}, {_missing(gpu.missing)}" if gpu.missing else f"{free}, fits"
        holders = f", held by {', '.join(gpu.holders)}" if gpu.holders else ""
        kept = f", kept for {', '.join(gpu.kept_for)}" if gpu.kept_for else ""
        alike.setdefault((gpu.model, f"{state}{holders}{kept}"), []).append(gpu.index)
    return [f"{_indices(indices)} {model}: {state}" for (model, state), indices in alike.items()]


def _missing(text: str) -> str:
    """Without what is free, which the line says already: "needs 8 GiB, 2 GiB free of 16 GiB" is "needs 8 GiB"."""
    return _FREE.sub("", text)


def _indices(indices: list[int]) -> str:
    """0, 1, 2, 5 is "GPUs 0-2, 5"."""
    runs: list[list[int]] = []
    for index in sorted(indices):
        if runs and runs[-1][-1] == index - 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    parts = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    return f"{'GPU' if len(indices) == 1 else 'GPUs'} {', '.join(parts)}"
