"""`kerf events`: the public stream, live. Anyone may read it the same way: `nats sub 'kerf.v1.event.>'`."""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

import msgspec
from rich.markup import escape

from cli.ask import connected
from cli.output import err, out
from shared.bus.port import Incoming
from shared.contracts import subjects
from shared.contracts.base import ContractError
from shared.contracts.envelope import unwrap
from shared.contracts.events import PreemptionAbandoned
from shared.contracts.plan_texts import describe_price, list_victims
from shared.contracts.preemption import Plan

_ABOUT = ("uid", "namespace", "name", "grant", "explanation")


async def run(args: argparse.Namespace) -> None:
    """Until interrupted, or until --count events have come."""
    left = args.count
    done = asyncio.Event()

    async def show(incoming: Incoming) -> None:
        nonlocal left
        if done.is_set():
            return
        try:
            envelope, event = unwrap(incoming.payload)
        except ContractError as error:
            err.print(f"[yellow]not an event: {escape(str(error))}[/yellow]")
            return
        plan = getattr(event, "plan", None)
        if isinstance(plan, Plan) and not (
            args.namespace
            or args.json
            or incoming.subject.endswith(f".{subjects.token(plan.beneficiaries[0].namespace)}")
        ):
            return  # it is published for each namespace that it is about
        if args.json:
            out.print(incoming.payload.decode(), markup=False, soft_wrap=True)
        else:
            about, said = _told(event)
            out.print(
                f"[dim]{envelope.time[11:23]}[/dim] "
                f"[bold]{envelope.type.removeprefix('dev.kerf.').removesuffix('.v1')}[/bold] {escape(about)} "
                f"{escape(said)}"
            )
        if left:
            left -= 1
            if not left:
                done.set()

    async with connected(args.nats) as bus:
        subject = (
            subjects.EVENTS_ALL
            if not args.namespace
            else f"{subjects.VERSION}.event.*.*.ns.{subjects.token(args.namespace)}"
        )
        await bus.subscribe(subject, show)
        await done.wait()


def _told(event: Any) -> tuple[str, str]:
    """What an event is about, and what happened."""
    plan = getattr(event, "plan", None)
    if isinstance(plan, Plan):
        why = f": {event.reason}" if isinstance(event, PreemptionAbandoned) else ""
        where = ", ".join(sorted({beneficiary.node for beneficiary in plan.beneficiaries}))
        return plan.gains, f"on {where}, {list_victims(plan)}; {describe_price(plan)} (plan {plan.plan_id}){why}"
    facts = (
        {}
        if event is None
        else {k: v for k, v in msgspec.to_builtins(event).items() if k not in _ABOUT and v not in ("", (), {}, None)}
    )
    about = f"{getattr(event, 'namespace', '')}/{event.name}" if hasattr(event, "name") else getattr(event, "node", "")
    return about, " ".join(f"{k}={_short(v)}" for k, v in facts.items())


def _short(value: object) -> object:
    """A gang may have hundreds of pods; listing them helps no reader."""
    return f"[{len(value)} of them]" if isinstance(value, list) and len(value) > 8 else value
