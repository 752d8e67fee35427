"""`kerf events`: the public stream, live. Anyone may read it the same way: `nats sub 'kerf.v1.event.>'`."""

from __future__ import annotations

import argparse
import asyncio
import sys
from typing import Any

import msgspec
from rich.markup import escape

from cli.ask import connected
from cli.output import Failure, err, out
from shared.bus.port import Incoming
from shared.contracts import subjects
from shared.contracts.base import ContractError
from shared.contracts.envelope import Envelope, unwrap
from shared.contracts.events import (
    GangWaiting,
    PlacementDecided,
    PlacementRejected,
    PreemptionAbandoned,
    SliceEnforced,
    SliceImpaired,
)
from shared.contracts.plan_texts import describe_price, list_victims
from shared.contracts.preemption import Plan
from shared.model.grant import Grant
from shared.model.units import format_mib
from shared.printable import printable_json

_ABOUT = ("uid", "namespace", "name", "grant_id", "traceparent", "boot_id", "created")


async def run(args: argparse.Namespace) -> None:
    """Until interrupted, or until --count events have come."""
    left = args.count
    over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def end(error: Exception | None = None) -> None:
        if not over.done():
            over.set_exception(error) if error is not None else over.set_result(None)

    async def show(incoming: Incoming) -> None:
        nonlocal left
        if over.done():
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
        try:
            _print(incoming.payload, envelope, event, as_json=args.json)
        except BrokenPipeError as error:  # whatever read this has ended
            end(error)
            return
        if left:
            left -= 1
            if not left:
                end()

    async def again() -> None:
        err.print("[yellow]connected to NATS again; events of the time between are missing here[/yellow]")

    lost = Failure("the connection to NATS is lost for good; run the command again")
    async with connected(args.nats, on_closed=lambda _: end(lost)) as bus:
        bus.on_reconnect(again)
        subject = (
            subjects.EVENTS_ALL
            if not args.namespace
            else f"{subjects.VERSION}.event.*.*.ns.{subjects.token(args.namespace)}"
        )
        await bus.subscribe(subject, show)
        await over


def _print(payload: bytes, envelope: Envelope, event: Any, *, as_json: bool) -> None:
    """With the time in UTC to milliseconds. Raises BrokenPipeError where nothing reads it any more."""
    if as_json:
        sys.stdout.write(printable_json(payload.decode()) + "\n")
        sys.stdout.flush()
        return
    about, said = _told(event)
    out.print(
        f"[dim]{envelope.time[:23]}Z[/dim] "
        f"[bold]{envelope.type.removeprefix('dev.kerf.').removesuffix('.v1')}[/bold] {escape(about)} "
        f"{escape(said)}"
    )


def _told(event: Any) -> tuple[str, str]:
    """What an event is about, and what happened."""
    plan = getattr(event, "plan", None)
    if isinstance(plan, Plan):
        why = f": {event.reason}" if isinstance(event, PreemptionAbandoned) else ""
        where = ", ".join(sorted({beneficiary.node for beneficiary in plan.beneficiaries}))
        return plan.gains, f"on {where}, {list_victims(plan)}; {describe_price(plan)} (plan {plan.plan_id}){why}"
    about = f"{getattr(event, 'namespace', '')}/{event.name}" if hasattr(event, "name") else getattr(event, "node", "")
    return about, _said(event)


def _said(event: Any) -> str:
    """What happened, as a sentence of facts. The whole of an event is in --json."""
    match event:
        case PlacementRejected():
            return event.explanation.sentence
        case PlacementDecided():
            gang = f", with gang {event.gang}" if event.gang else ""
            return f"on {event.node}{_shares(event.grant)}{gang}, after {event.waited_ms} ms"
        case SliceEnforced():
            if not event.gpus:
                return f"container {event.container} on {event.node}: suspended, its memory is on the host"
            gpus = "; ".join(_share(mib, milli, uuid) for uuid, (mib, milli) in event.gpus.items())
            return f"container {event.container} on {event.node}: {gpus} ({event.strategy}: {event.promise})"
        case SliceImpaired():
            return f"container {event.container} on {event.node}: {event.sentence}"
        case GangWaiting():
            return event.sentence
        case None:
            return "of a version that this kerf does not know; --json shows it"
    facts = msgspec.to_builtins(event)
    return ", ".join(
        f"{key.replace('_', ' ')} {_plain(value)}"
        for key, value in facts.items()
        if key not in _ABOUT and value not in ("", (), [], {}, None)
    )


def _shares(grant: Grant | None) -> str:
    if grant is None:
        return ""
    shares = [share for container in grant.containers.values() for share in container.gpus]
    return ": " + "; ".join(_share(share.memory_mib, share.compute_milli, share.uuid) for share in shares)


def _share(memory_mib: int, compute_milli: int, uuid: str) -> str:
    return f"{format_mib(memory_mib)} and {compute_milli / 10:g} % of {uuid}"


def _plain(value: object) -> str:
    """A value without Python's brackets. A gang may have hundreds of pods; listing them helps no reader."""
    if isinstance(value, dict):
        return "(" + ", ".join(f"{key} {_plain(each)}" for key, each in value.items()) + ")"
    if isinstance(value, list | tuple):
        return f"{len(value)} of them" if len(value) > 8 else "(" + ", ".join(map(_plain, value)) + ")"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)
