"""`kerf demo`: openb's pods on openb's nodes, the whole way, on embedded defaults or on a real API server."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator

import msgspec
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from cli import openb, top, trace, why
from cli.ask import ask
from cli.demo_check import double_bookings
from cli.demo_cluster import Cluster
from cli.output import Failure, err, heading, out, print_json
from cli.stack import Stack, quiet_logs, stack
from shared.contracts import metrics_queries, queries
from shared.contracts.metrics_queries import TraceAnswer, TraceQuery
from shared.contracts.queries import ExplainAnswer, StatusAnswer, StatusQuery, WhyQuery

NAMESPACE = "openb"
SUPPLY = 1.0
"""GPUs for each GPU requested: scarce enough that some pods must wait."""
SETTLED_S = 1.5


class Result(msgspec.Struct, frozen=True):
    pods_requested: int
    pods_bound: int
    pods_pending: int
    double_bookings: int
    """GPUs on which the grants of bound pods, as Kubernetes has them, exceed what the node has."""
    seconds_to_first_bound: float
    """From the start of the command."""
    seconds_total: float
    allocation_percent: float
    decisions_per_s: float
    """Decisions over the time from the first pod's creation to the last Binding."""
    nodes: int
    gpus: int
    latency_ms_p50: float
    """Created to seen bound, by the clock of this process."""
    latency_ms_p99: float
    decide_us_p50: float
    decide_us_p99: float
    cluster: str


async def run(args: argparse.Namespace) -> None:
    if args.pods < 1:
        raise Failure("--pods must be at least 1")
    quiet_logs()
    started = time.monotonic()
    pods = openb.pods(args.pods)
    nodes = openb.subset(pods, supply=SUPPLY)
    err.print(
        f"[bold]Kerf demo[/bold]: {len(pods)} pods of the openb trace on {len(nodes)} of its nodes "
        f"({sum(n.gpus for n in nodes)} GPUs)"
    )
    async with (
        _cluster(kube=args.kube) as world,
        stack([openb.hollow(n) for n in nodes], kubeconfig=world.kubeconfig, trace_ratio=1.0, page_port=0) as made,
    ):
        err.print(
            f"  {world.name}, NATS and {len(made.services)} services are up after {time.monotonic() - started:.1f} s"
        )
        err.print(
            f"  the live page: {made.page}" + ("" if args.stay else " (while this runs; --stay keeps it)"),
            highlight=False,
        )
        await world.begin(made, nodes, NAMESPACE)
        result, pending, bound = await _replay(made, world, pods, nodes, started)
        await _show(made, result, pending, bound, json=args.json)
        if args.stay:
            err.print(f"\nThe live page stays at {made.page} until Ctrl-C.", highlight=False)
            await _stay(made)


async def _stay(made: Stack) -> None:
    stop = asyncio.Event()
    for sign in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(sign, stop.set)
    while not stop.is_set():
        if made.failed():
            raise Failure(f"a service ended by itself: {made.failed()}")
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), 0.5)


async def _replay(
    made: Stack, world: Cluster, pods: list[openb.TracePod], nodes: list[openb.TraceNode], started: float
) -> tuple[Result, list[str], list[str]]:
    created: dict[str, float] = {}
    bound: dict[str, float] = {}
    await world.watch_bound(made, bound)
    begun = time.monotonic()
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=err,
        transient=False,
    ) as progress:
        creating = progress.add_task("  created", total=len(pods))
        binding = progress.add_task("  bound  ", total=len(pods))

        async def create() -> None:
            async for name in world.create(made, [openb.manifest(p, NAMESPACE) for p in pods]):
                created[name] = time.monotonic()
                progress.update(creating, completed=len(created))

        task = asyncio.create_task(create())
        last, quiet_since = -1, time.monotonic()
        try:
            while True:
                await asyncio.sleep(0.05)
                progress.update(binding, completed=len(bound))
                if made.failed():
                    raise Failure(f"a service ended by itself: {made.failed()}")
                if not made.server.runs:
                    raise Failure("the embedded NATS server ended by itself, and everything with it")
                if task.done():
                    task.result()
                if len(bound) != last or not task.done():
                    last, quiet_since = len(bound), time.monotonic()
                if task.done() and (len(bound) == len(pods) or time.monotonic() - quiet_since > SETTLED_S):
                    break
        finally:
            task.cancel()  # interrupted, or something ended: its open requests get no answer
    status = await ask(made.bus, queries.STATUS.subject, StatusQuery(), StatusAnswer)
    latencies = sorted((at - created[name]) * 1000 for name, at in bound.items() if name in created) or [0.0]
    end = max(bound.values(), default=begun)
    result = Result(
        pods_requested=len(pods),
        pods_bound=len(bound),
        pods_pending=len(pods) - len(bound),
        double_bookings=len(await double_bookings(made.bus)) + status.double_bookings,
        seconds_to_first_bound=round(min(bound.values(), default=end) - started, 2),
        seconds_total=round(time.monotonic() - started, 2),
        allocation_percent=top.percent(status.gpu_milli_allocated, status.gpu_milli_total),
        decisions_per_s=round(status.decisions / max(1e-3, end - begun), 1),
        nodes=len(nodes),
        gpus=sum(n.gpus for n in nodes),
        latency_ms_p50=round(max(0.0, latencies[len(latencies) // 2]), 1),
        latency_ms_p99=round(latencies[len(latencies) * 99 // 100], 1),
        decide_us_p50=round(status.decide_us_p50, 1),
        decide_us_p99=round(status.decide_us_p99, 1),
        cluster=world.name,
    )
    pending = [p.name for p in pods if p.name not in bound]
    shown = {p.name for p in pods if p.gpus and p.gpu_milli < 1000}
    return result, pending, sorted(bound, key=lambda name: name in shown)


async def _show(made: Stack, result: Result, pending: list[str], bound: list[str], *, json: bool) -> None:
    if json:
        print_json(result)
        return
    out.print(
        f"\n[bold]{result.pods_bound} of {result.pods_requested} pods bound[/bold], {result.pods_pending} "
        f"waiting, {result.double_bookings} double bookings"
    )
    out.print(f"  allocation {result.allocation_percent} % of {result.gpus} GPUs on {result.nodes} nodes")
    out.print(
        f"  {result.decisions_per_s:.0f} decisions/s; created to bound p50 {result.latency_ms_p50:.0f} ms, p99 "
        f"{result.latency_ms_p99:.0f} ms; a decision takes {result.decide_us_p50:.0f} µs (p99 "
        f"{result.decide_us_p99:.0f} µs)"
    )
    out.print(
        f"  first pod bound after {result.seconds_to_first_bound:.1f} s, everything after "
        f"{result.seconds_total:.1f} s\n"
    )
    status = await ask(made.bus, queries.STATUS.subject, StatusQuery(waiting=5), StatusAnswer)
    for explanation in status.waiting[:5]:
        out.print(f"  [yellow]waiting[/yellow] {explanation.name}: {escape(explanation.sentence)}")
    if pending:
        heading(f"kerf why {pending[0]}")
        answer = await ask(
            made.bus, queries.WHY.subject, WhyQuery(namespace=NAMESPACE, name=pending[0], max_nodes=2), ExplainAnswer
        )
        if answer.explanation is not None:
            why.show(answer.explanation)
    if bound:
        heading(f"kerf trace {bound[-1]}")
        await asyncio.sleep(1.0)  # spans travel twice a second
        query = TraceQuery(namespace=NAMESPACE, name=bound[-1])
        trace.show(await ask(made.bus, metrics_queries.TRACE.subject, query, TraceAnswer))


@contextlib.asynccontextmanager
async def _cluster(*, kube: bool) -> AsyncIterator[Cluster]:
    if not kube:
        yield Cluster()
        return
    from cli.demo_kube import kube_cluster  # noqa: PLC0415 - only where a real API server is wanted

    async with kube_cluster() as real:
        yield real
