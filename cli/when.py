"""`kerf when POD`: the earliest time at which a waiting pod could start, and what that counts on."""

from __future__ import annotations

import argparse

from cli.ask import ask, connected, given
from cli.output import out, pod_name, print_json, say
from shared.contracts import queries
from shared.contracts.queries import WhenAnswer, WhenQuery

_BY = {
    "deletion": "its deletion, with its grace period",
    "deadline": "its activeDeadlineSeconds",
    "expected": "its kerf.dev/expected-duration",
}


async def run(args: argparse.Namespace) -> None:
    namespace, name = pod_name(args.pod, args.namespace)
    async with connected(args.nats) as bus:
        answer = await ask(bus, queries.WHEN.subject, WhenQuery(namespace=namespace, name=name), WhenAnswer)
    told = given(answer.when)
    if args.json:
        print_json(told)
        return
    say(f"{told.namespace}/{told.name}: {told.sentence}" + (f" ({told.at})" if told.state == "known" else ""))
    for end in told.counts_on:
        say(f"  {end.namespace}/{end.name} on {end.node} ends in {end.in_s} s by {_BY.get(end.by, end.by)}")
    if told.assumptions:
        out.print("\n[bold]Provided that[/bold]")
        for assumption in told.assumptions:
            say(f"  • {assumption}")
