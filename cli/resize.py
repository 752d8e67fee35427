"""`kerf resize`: give the slices of a running pod more or less, without a restart."""

from __future__ import annotations

import argparse
import asyncio

from rich.markup import escape

from cli.ask import NotAnswered, ask, connected
from cli.output import Failure, err, out, pod_name, print_json
from shared.bus.port import Bus, BusError, NoResponder
from shared.contracts import queries, subjects
from shared.contracts.base import ContractError, decode, encode
from shared.contracts.commands import Answers, ResizePod
from shared.contracts.explain import ResizeExplanation
from shared.contracts.queries import ExplainAnswer, WhyQuery
from shared.model.resize import ResizeError, read_resize

LOOK_S = 0.3


async def run(args: argparse.Namespace) -> None:
    namespace, name = pod_name(args.pod, args.namespace)
    wanted = _wanted(args)
    async with connected(args.nats) as bus:
        await _order(bus, ResizePod(namespace=namespace, name=name, resize=wanted))
        said = await _wait(bus, namespace, name, wanted, args) if args.wait and wanted else None
    if args.json:
        print_json({"namespace": namespace, "name": name, "resize": wanted, "state": said})
    elif said is None:
        out.print(
            f"pod {escape(name)} is to have {escape(wanted)}; `kerf why {escape(namespace)}/{escape(name)}` says how "
            "that stands"
            if wanted
            else f"the slices of pod {escape(name)} stay as they are"
        )
    elif said.phase == "done":
        out.print(escape(said.sentence))
    if said is not None and said.phase != "done":
        raise Failure(f"{said.phase}: {said.sentence}")


def _wanted(args: argparse.Namespace) -> str:
    """The annotation's text. Raises Failure."""
    prefix = f"{args.container}:" if args.container else ""
    parts = [f"{prefix}{what}={amount}" for what in ("memory", "compute") if (amount := getattr(args, what))]
    if bool(parts) == args.cancel:
        raise Failure("say what the pod's slices shall have by --memory or --compute, or --cancel")
    text = ",".join(parts)
    try:
        read_resize(text) if text else None
    except ResizeError as error:
        raise Failure(str(error)) from None
    return text


async def _order(bus: Bus, order: ResizePod) -> None:
    try:
        reply = await bus.request(subjects.CMD_RESIZE, encode(order), timeout_s=10.0)
        (answer,) = decode(reply, Answers).answers
    except NoResponder:
        raise Failure("no watcher that can resize is connected to this NATS, so nothing was changed") from None
    except (BusError, ContractError) as error:
        raise Failure(
            f"{subjects.CMD_RESIZE}: {error}. It changes the cluster, so it needs the NATS user `operator`; without "
            "that, annotate the pod with kubectl"
        ) from error
    if answer.outcome != "done":
        raise Failure(f"the pod was not annotated ({answer.outcome}): {answer.message}")


async def _standing(bus: Bus, namespace: str, name: str, wanted: str) -> ResizeExplanation | None:
    """None while placement does not know of it, or does not answer: a leader that changes is asked again."""
    question = WhyQuery(namespace=namespace, name=name, max_nodes=0)
    try:
        answer = await ask(bus, queries.WHY.subject, question, ExplainAnswer)
    except NotAnswered:
        return None
    found = None if answer.explanation is None else answer.explanation.resize
    return found if found is not None and found.wanted == wanted else None


async def _wait(bus: Bus, namespace: str, name: str, wanted: str, args: argparse.Namespace) -> ResizeExplanation | None:
    """How it stands when nothing more happens by itself, or the time is over."""
    clock = asyncio.get_running_loop().time
    until, told = clock() + args.timeout, ""
    while True:
        now = await _standing(bus, namespace, name, wanted)
        if (now is not None and now.phase in ("done", "refused")) or clock() >= until:
            return now or ResizeExplanation(wanted=wanted, phase="waiting", sentence="placement has not seen it yet")
        if now is not None and now.sentence != told:
            told = now.sentence
            if not args.json:
                err.print(escape(f"{now.phase}: {told}"))
        await asyncio.sleep(LOOK_S)
