"""`kerf trace POD`: the span tree of one pod, from admission to the slice."""

from __future__ import annotations

import argparse

from rich.markup import escape
from rich.tree import Tree

from cli.ask import ask, connected
from cli.output import Failure, out, print_json
from shared.contracts import metrics_queries
from shared.contracts.metrics_queries import Span, TraceAnswer, TraceQuery


async def run(args: argparse.Namespace) -> None:
    namespace, _, name = args.pod.rpartition("/")
    async with connected(args.nats) as bus:
        query = TraceQuery(namespace=namespace or args.namespace, name=name)
        answer = await ask(bus, metrics_queries.TRACE.subject, query, TraceAnswer)
    if args.json:
        print_json(answer)
        return
    if not answer.spans:
        raise Failure(
            f"no spans of {args.pod} are kept: its trace was not sampled (5 % are by default; set "
            "KERF_TRACE_RATIO=1), or it is too old"
        )
    show(answer)


def show(answer: TraceAnswer) -> None:
    spans = sorted(answer.spans, key=lambda s: (s.start_ns, s.end_ns))
    begin = spans[0].start_ns
    root = Tree(f"[bold]trace {answer.trace_id}[/bold]  {(max(s.end_ns for s in spans) - begin) / 1e6:.1f} ms")
    known = {s.span_id for s in spans if s.span_id}  # other systems' spans may have no id
    children: dict[str, list[Span]] = {}
    for span in spans:
        children.setdefault(span.parent_id if span.parent_id in known else "", []).append(span)

    def hang(parent: Tree, of: list[Span]) -> None:
        for span in of:
            hang(parent.add(_line(span, begin)), children.pop(span.span_id, []))

    hang(root, children.pop("", []))
    out.print(root)


def _line(span: Span, begin: int) -> str:
    facts = " ".join(
        f"{k.rsplit('.', 1)[-1]}={v}" for k, v in span.attributes.items() if k.startswith(("kerf.", "k8s.node"))
    )
    error = f" [red]{escape(span.error)}[/red]" if span.error else ""
    return (
        f"{escape(span.name)} [dim]{escape(span.service)}[/dim] +{(span.start_ns - begin) / 1e6:.1f} ms, "
        f"{(span.end_ns - span.start_ns) / 1e6:.1f} ms  [cyan]{escape(facts)}[/cyan]{error}"
    )
