"""`kerf events`: the public stream, live. Anyone may read it the same way: `nats sub 'kerf.v1.event.>'`."""

from __future__ import annotations

import argparse
import asyncio

import msgspec
from rich.markup import escape

from cli.ask import connected
from cli.output import err, out
from shared.bus.port import Incoming
from shared.contracts import subjects
from shared.contracts.base import ContractError
from shared.contracts.envelope import unwrap


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
        if args.json:
            out.print(incoming.payload.decode(), markup=False, soft_wrap=True)
        else:
            facts = {} if event is None else {k: v for k, v in msgspec.to_builtins(event).items() if k not in ("uid", "namespace", "name", "grant", "explanation") and v not in ("", (), {}, None)}
            about = f"{getattr(event, 'namespace', '')}/{getattr(event, 'name', '')}" if hasattr(event, "name") else getattr(event, "node", "")
            out.print(f"[dim]{envelope.time[11:23]}[/dim] [bold]{envelope.type.removeprefix('dev.kerf.').removesuffix('.v1')}[/bold] {escape(about)} " + escape(" ".join(f"{k}={_short(v)}" for k, v in facts.items())))
        if left:
            left -= 1
            if not left:
                done.set()

    async with connected(args.nats) as bus:
        subject = subjects.EVENTS_ALL if not args.namespace else f"{subjects.VERSION}.event.*.*.ns.{subjects.token(args.namespace)}"
        await bus.subscribe(subject, show)
        await done.wait()


def _short(value: object) -> object:
    """A gang may have hundreds of pods: a line of them helps nobody."""
    return f"[{len(value)} of them]" if isinstance(value, list) and len(value) > 8 else value
