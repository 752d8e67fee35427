"""`kerf scale`: how many more nodes of which type would give the waiting pods a place."""

from __future__ import annotations

import argparse

from cli.ask import ask, connected, given
from cli.output import out, print_json, say
from shared.contracts import queries
from shared.contracts.queries import ScaleAnswer, ScaleQuery


async def run(args: argparse.Namespace) -> None:
    async with connected(args.nats) as bus:
        answer = await ask(bus, queries.SCALE.subject, ScaleQuery(max_nodes=args.max_nodes), ScaleAnswer)
    scale = given(answer.scale)
    if args.json:
        print_json(scale)
        return
    say(scale.sentence)
    for need in scale.needs:
        more = f" and {need.pods - len(need.examples)} more" if need.pods > len(need.examples) else ""
        out.print(f"  {need.name}: {need.nodes} nodes, {need.gpus} GPUs: {', '.join(need.examples)}{more}")
