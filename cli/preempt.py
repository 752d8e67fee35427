"""`kerf preempt --dry-run POD`: which pods would be preempted, and what that costs. Changes nothing."""

from __future__ import annotations

import argparse

from rich.markup import escape

from cli.ask import ask, connected
from cli.output import Failure, new_table, out, pod_name, print_json, say
from shared.contracts import queries
from shared.contracts.preemption import Plan, PreemptAnswer, PreemptQuery


async def run(args: argparse.Namespace) -> None:
    if not args.dry_run:
        raise Failure(
            "preview only; preemption itself is automatic: use --dry-run to see which pods would be preempted"
        )
    namespace, name = pod_name(args.pod, args.namespace)
    async with connected(args.nats) as bus:
        answer = await ask(bus, queries.PREEMPT.subject, PreemptQuery(namespace=namespace, name=name), PreemptAnswer)
    if args.json:
        print_json(answer)
        return
    show_answer(f"{namespace}/{name}", answer)


def show_answer(about: str, answer: PreemptAnswer) -> None:
    say(f"{about}: {answer.error or answer.sentence}")
    if answer.kept:
        say("\nNot preempted: " + "; ".join(answer.kept))
    if answer.plan is not None:
        _show(answer.plan)
    for other in answer.alternatives:
        least = "at least " if other.at_least else ""
        price = f"{least or 'at '}{other.price_gpu_seconds} GPU-seconds"
        pods = f"{other.victims} pod{'s' if other.victims > 1 else ''}"
        say(f"Alternative on {', '.join(other.nodes)}: {other.action} {least}{pods}, {price}")


def _show(plan: Plan) -> None:
    gains = new_table("BENEFICIARY", "NODE")
    for beneficiary in plan.beneficiaries:
        gains.add_row(escape(f"{beneficiary.namespace}/{beneficiary.name}"), beneficiary.node)
    losses = new_table("VICTIM", "ACTION", "LOST GPU-SECONDS")
    for victim in plan.victims:
        losses.add_row(f"{victim.namespace}/{victim.name}", victim.action, str(victim.lost_gpu_seconds))
    out.print(gains)
    out.print(losses)
