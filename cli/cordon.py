"""`kerf cordon` and `kerf drain`: keep new pods off a node's GPUs, or off one of them, and evict its pods."""

from __future__ import annotations

import argparse
import asyncio
import getpass
import os
import platform
from typing import TypeVar

import msgspec
from rich.markup import escape

from cli.ask import NotAnswered, ask, connected
from cli.output import Failure, err, out, print_json
from shared.bus.port import Bus, BusError, NoResponder, Unknown
from shared.contracts import queries, subjects
from shared.contracts.base import ContractError, decode, encode
from shared.contracts.commands import Answers, Evict, EvictBatch
from shared.contracts.node_commands import CordonedPod, NodeCordon, NodeCordonAnswer
from shared.contracts.queries import InspectAnswer, InspectQuery

LOOK_S = 0.5
AGAIN_S = 5.0
"""How long after a refusal an eviction is tried again: budgets change as pods become ready elsewhere."""

T = TypeVar("T")


class Away(Failure):
    """The service that is to do it is not connected, or did not answer in time."""


class Left(msgspec.Struct, frozen=True):
    """A pod that is still there, and the last answer about it."""

    namespace: str
    name: str
    why: str


async def cordon(args: argparse.Namespace) -> None:
    async with connected(args.nats) as bus:
        order = await _order(bus, args.target, args.reason, undo=args.undo)
        answer = await _tell(bus, order)
    if args.json:
        print_json(
            {"node": order.node, "gpu": order.gpu, "gpus": answer.gpus, "cordoned": not args.undo, "pods": answer.pods}
        )
        return
    what = f"GPU {order.gpu}" if order.gpu else f"node {order.node} with {len(answer.gpus)} GPUs"
    out.print(
        f"{escape(what)} takes new slices again"
        if args.undo
        else f"{escape(what)} takes no new slices; {len(answer.pods)} pods stay on it"
    )


async def drain(args: argparse.Namespace) -> None:
    async with connected(args.nats) as bus:
        order = await _order(bus, args.target, args.reason, undo=False)
        gone, left = await _drain(bus, order, args.timeout, quiet=args.json)
    if args.json:
        print_json({"node": order.node, "gpu": order.gpu, "drained": not left, "gone": gone, "left": left})
    elif not left:
        out.print(
            f"{escape(args.target)} is drained: {len(gone)} pods are gone. It takes new slices after `kerf "
            f"cordon {escape(args.target)} --undo`"
        )
    if left:
        names = "; ".join(f"{pod.namespace}/{pod.name}: {pod.why}".removeprefix("/") for pod in left)
        raise Failure(
            f"not drained within {args.timeout:g} s, {len(left)} are left ({names}). It stays cordoned; "
            "run the same command again"
        )


async def _drain(bus: Bus, order: NodeCordon, timeout_s: float, *, quiet: bool) -> tuple[list[str], list[Left]]:
    """Names of pods that went, and those that are left at the end."""
    clock = asyncio.get_running_loop().time
    until, why, again_at = clock() + timeout_s, dict[str, str](), dict[str, float]()
    met: dict[str, str] = {}
    here = {pod.uid: pod for pod in (await _tell(bus, order)).pods}
    while True:
        for uid in [uid for uid in met if uid not in here and why.pop(uid, None) is not None]:
            _say(quiet, f"{met[uid]} is gone")
        met |= {uid: f"{pod.namespace}/{pod.name}" for uid, pod in here.items()}
        coming = [] if here else await _coming(bus, order)
        if not (here or coming) or clock() >= until:
            return [name for uid, name in met.items() if uid not in here], [
                *(Left(p.namespace, p.name, why.get(p.uid, "not asked")) for p in here.values()),
                *coming,
            ]
        due = [pod for uid, pod in here.items() if clock() >= again_at.get(uid, 0.0)]
        try:
            refused = await _evict(bus, due, order) if due else {}
        except Away as away:
            refused = {pod.uid: str(away) for pod in due}
        for pod in due:
            word = refused.get(pod.uid, "asked to go, and still running")
            again_at[pod.uid] = clock() + (AGAIN_S if pod.uid in refused else timeout_s)
            if why.get(pod.uid) != word:
                why[pod.uid] = word
                _say(quiet, f"{met[pod.uid]}: {word}")
        await asyncio.sleep(LOOK_S)
        try:
            here = {pod.uid: pod for pod in (await _tell(bus, order)).pods}
        except Away as away:  # an agent that starts anew; the node was cordoned before
            _say(quiet, str(away))


async def _coming(bus: Bus, order: NodeCordon) -> list[Left]:
    """Returns what placement's book has on the target although its agent has nothing there: pods that are about to
    start, or to be released, and GPUs of which placement has not received the cordon, so that it may still place pods
    there."""
    question = InspectQuery(gpu=order.gpu) if order.gpu else InspectQuery(node=order.node)
    try:
        found = await ask(bus, queries.INSPECT.subject, question, InspectAnswer)
    except NotAnswered as error:  # a leader that changes; it is asked again
        return [Left("", order.gpu or order.node, str(error))]
    left: dict[tuple[str, str], Left] = {}
    for gpu in (gpu for node in found.nodes for gpu in node.gpus if order.gpu in ("", gpu.uuid)):
        if gpu.state == "healthy":
            left["", gpu.uuid] = Left("", gpu.uuid, "placement has not received the cordon yet")
        for pod in (pod for pod in gpu.pods if pod.state != "reserved"):
            left[pod.namespace, pod.name] = Left(pod.namespace, pod.name, f"{pod.state} there, by placement's book")
    return list(left.values())


async def _evict(bus: Bus, pods: list[CordonedPod], order: NodeCordon) -> dict[str, str]:
    """Why each that was not accepted was not, by uid."""
    reason = f"drained by {order.by}" + (f": {order.reason}" if order.reason else "")
    batch = EvictBatch(
        evictions=tuple(Evict(uid=p.uid, namespace=p.namespace, name=p.name, reason=reason) for p in pods)
    )
    answers = await _request(bus, subjects.CMD_EVICT, batch, Answers, "no watcher is connected to this NATS")
    # A pod that is gone for the API server may still run on its node: the command waits for that too.
    return {
        answer.uid: f"{answer.outcome}: {answer.message}"
        for answer in answers.answers
        if answer.outcome not in ("done", "gone")
    }


async def _order(bus: Bus, target: str, reason: str, *, undo: bool) -> NodeCordon:
    """A node's name or a GPU's UUID, as people give it. Raises Failure where there is none."""
    by = f"{_user()}@{platform.node()}"
    for question in (InspectQuery(node=target), InspectQuery(gpu=target)):
        found = await ask(bus, queries.INSPECT.subject, question, InspectAnswer, errors=False)
        for node in found.nodes:
            if node.node == target:
                return NodeCordon(node=node.node, undo=undo, by=by, reason=reason)
            if any(gpu.uuid == target for gpu in node.gpus):
                return NodeCordon(node=node.node, gpu=target, undo=undo, by=by, reason=reason)
    raise Failure(f"there is no node and no GPU {target!r}; `kerf inspect --json` has the names of all")


def _user() -> str:
    """The account's name; its number where the machine knows no name for it, as in many containers."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


async def _tell(bus: Bus, order: NodeCordon) -> NodeCordonAnswer:
    missing = f"the agent of node {order.node} is not connected to this NATS, and was told nothing"
    answer = await _request(bus, subjects.node_command(order.node, "cordon"), order, NodeCordonAnswer, missing)
    if not answer.ok:
        raise Failure(answer.reason)
    return answer


async def _request(bus: Bus, subject: str, order: msgspec.Struct, kind: type[T], missing: str) -> T:
    try:
        return decode(await bus.request(subject, encode(order), timeout_s=10.0), kind)
    except NoResponder:
        raise Away(missing) from None
    except Unknown as error:
        raise Away(f"{subject}: {error}") from None
    except (BusError, ContractError) as error:
        raise Failure(
            f"{subject}: {error}. It changes the cluster, so it needs the NATS user `operator`; whether it was "
            "done, `kerf inspect` says"
        ) from error


def _say(quiet: bool, text: str) -> None:
    if not quiet:
        err.print(escape(text))
