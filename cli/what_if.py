"""`kerf what-if`: with another pod, without a node, with more nodes or GPUs, with a pod of another size."""

from __future__ import annotations

import argparse
from typing import Any

import msgspec

from cli.ask import ask, connected
from cli.migrations import show_migrations
from cli.output import Failure, out, pod_name, print_json, read_pod, say
from cli.preempt import show_answer
from cli.why import show
from shared.bus.port import Bus
from shared.contracts import queries
from shared.contracts.explain import WorldExplanation
from shared.contracts.preemption import PreemptAnswer, PreemptQuery
from shared.contracts.queries import AddGpus, AddNodes, ExplainAnswer, Resize, WhatIfQuery
from shared.model import names
from shared.model.neighbours import GPU_RESOURCES

_SHOWN = 10


async def run(args: argparse.Namespace) -> None:
    query = _query(args)
    async with connected(args.nats) as bus:
        answer = await ask(bus, queries.WHAT_IF.subject, query, ExplainAnswer)
        # Of a changed cluster the preemptor knows nothing.
        waits = answer.world is None and answer.explanation is not None and answer.explanation.state == "would-wait"
        preemption = await _preemption(bus, query.pod) if waits else None
    if args.json:
        told: dict[str, Any] = msgspec.to_builtins(answer if answer.world is not None else answer.explanation)
        print_json(told if preemption is None else told | {"preemption": preemption})
        return
    if answer.world is not None:
        _show_world(answer.world)
    if answer.explanation is not None:
        show(answer.explanation)
    if preemption is not None:
        show_answer("\nPreemption", preemption)


async def _preemption(bus: Bus, pod: Any) -> PreemptAnswer:
    """Which pods would be preempted for a manifest that fits nowhere. Without an answer its `error` says why: the rest
    is of use all the same."""
    try:
        return await ask(bus, queries.PREEMPT.subject, PreemptQuery(pod=pod), PreemptAnswer, errors=False)
    except Failure as error:
        return PreemptAnswer(error=str(error))


def _query(args: argparse.Namespace) -> WhatIfQuery:
    if not (args.file or args.drain or args.add_node or args.add_gpus or args.resize):
        raise Failure(
            "say what would be: -f FILE, --drain NODE, --add-node LIKE, --add-gpus NODE, or --resize POD with --limit"
        )
    if bool(args.resize) != bool(args.limit):
        raise Failure(
            "--resize POD and --limit RESOURCE=AMOUNT belong together, such as --limit kerf.dev/gpu-memory=20Gi"
        )
    resize: tuple[Resize, ...] = ()
    if args.resize:
        namespace, name = pod_name(args.resize, args.namespace)
        resize = (Resize(namespace=namespace, name=name, limits=dict(_limit(text) for text in args.limit)),)
    return WhatIfQuery(
        pod=_canonical(args.file) if args.file else None,
        max_nodes=args.nodes,
        drain=tuple(args.drain),
        resize=resize,
        add_nodes=(AddNodes(like=args.add_node, count=args.count),) if args.add_node else (),
        add_gpus=(AddGpus(node=args.add_gpus, count=args.count),) if args.add_gpus else (),
    )


def _canonical(file: str) -> Any:
    """The pod of a file. Raises Failure for a pod that only admission can read: placement would take its resources for
    extended ones, which no node has."""
    pod = read_pod(file)
    spec = _mapping(pod, "spec")
    found = [c for part in ("containers", "initContainers") for c in _list(spec, part) if isinstance(c, dict)]
    limits = {str(name) for c in found for name in _mapping(_mapping(c, "resources"), "limits")}
    foreign = sorted(name for name in limits if name.startswith(GPU_RESOURCES))
    if foreign and not any(names.is_gpu_resource(name) for name in limits):
        raise Failure(
            f"the pod asks for {', '.join(foreign)}, which admission rewrites at its creation where it reads that "
            "dialect. Ask about what it makes of the pod: "
            f"kubectl create --dry-run=server -o yaml -f {file} | kerf what-if -f -"
        )
    return pod


def _mapping(of: dict[str, Any], key: str) -> dict[Any, Any]:
    """Empty where it is something else: placement says what is wrong with it."""
    value = of.get(key)
    return value if isinstance(value, dict) else {}


def _list(of: dict[str, Any], key: str) -> list[Any]:
    value = of.get(key)
    return value if isinstance(value, list) else []


def _limit(text: str) -> tuple[str, str]:
    resource, _, amount = text.partition("=")
    if not resource or not amount:
        raise Failure(f"--limit {text} is no RESOURCE=AMOUNT, such as kerf.dev/gpu-memory=20Gi")
    return resource, amount


def _show_world(world: WorldExplanation) -> None:
    say(world.sentence)
    show_migrations("Would move", world.moves)
    for title, pods in (("Would find no place", world.stranded), ("Wait now, and would fit", world.fits)):
        if pods:
            out.print(f"\n[bold]{title}[/bold]")
        for pod in pods[:_SHOWN]:
            say(
                f"  {pod.namespace}/{pod.name}"
                + (f" on {pod.node}" if pod.node else "")
                + (f": {pod.sentence}" if pod.sentence else "")
            )
        if len(pods) > _SHOWN:
            say(f"  and {len(pods) - _SHOWN} more (--json shows them)")
