"""`kerf advise`: which pods should be migrated so that a pod fits, and what that disturbs."""

from __future__ import annotations

import argparse

from cli.ask import ask, connected, given
from cli.migrations import show_migrations
from cli.output import Failure, out, pod_name, print_json, read_pod, say
from shared.contracts import queries
from shared.contracts.queries import AdviseAnswer, AdviseQuery


async def run(args: argparse.Namespace) -> None:
    if sum(map(bool, (args.pod, args.file, args.gpus))) != 1:
        raise Failure("name what should fit: a pending POD, -f FILE, or --gpus N")
    namespace, name = pod_name(args.pod, args.namespace)
    query = AdviseQuery(
        namespace=namespace if name else "",
        name=name,
        pod=read_pod(args.file) if args.file else None,
        gpus=args.gpus,
        groups=args.groups,
        most_gpu_seconds=args.most,
    )
    async with connected(args.nats) as bus:
        answer = await ask(bus, queries.ADVISE.subject, query, AdviseAnswer)
    advice = given(answer.advice)
    if args.json:
        print_json(advice)
        return
    say(advice.sentence)
    if args.gpus:
        out.print(
            f"  groups of {args.gpus} idle GPUs on one node: "
            f"{advice.places_before} now, {advice.places_after} afterwards"
        )
    show_migrations("Migrations", advice.moves)
    if len(advice.places) > 1:
        say(
            "\nPlacement afterwards: "
            + ", ".join(f"{place.namespace}/{place.name} on {place.node}" for place in advice.places)
        )
    if advice.kept:
        say("\nNot migrated: " + "; ".join(advice.kept))
