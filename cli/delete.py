"""`kerf delete`: objects out of the simulated cluster of `kerf up`, as kubectl would from a real one."""

from __future__ import annotations

import argparse
from typing import Any

from rich.markup import escape

from cli.apply import read_manifests
from cli.ask import connected
from cli.output import Failure, err, out, pod_name, print_json
from shared.bus.port import NoResponder
from shared.contracts import subjects
from shared.contracts.base import decode, encode
from shared.contracts.commands import SimAnswer, SimDelete

_KINDS = {
    kind.lower(): kind
    for kind in ("Pod", "Node", "Namespace", "ConfigMap", "StatefulSet", "Deployment", "ReplicaSet", "Job")
}
"""As people write them; others as in manifests."""


async def run(args: argparse.Namespace) -> None:
    orders = _orders(args)
    deleted: list[str] = []
    refusals: list[str] = []
    async with connected(args.nats) as bus:
        for order in orders:
            try:
                answer = decode(await bus.request(subjects.SIM_DELETE, encode(order), timeout_s=10.0), SimAnswer)
            except NoResponder:
                raise Failure(
                    "there is no simulated cluster on this NATS; with a real one use kubectl delete"
                ) from None
            deleted += [f"{order.kind} {order.name}"] if answer.applied else []
            refusals += answer.refusals
    if args.json:
        print_json({"deleted": deleted, "refusals": refusals})
    for name in () if args.json else deleted:
        out.print(f"{escape(name)} deleted")
    if refusals:
        for refusal in refusals if not args.json else ():
            err.print(f"[red]{escape(refusal)}[/red]")
        raise Failure(f"{len(refusals)} of {len(orders)} were not deleted")


def _orders(args: argparse.Namespace) -> list[SimDelete]:
    if bool(args.file) == bool(args.target) or len(args.target) > 2:
        raise Failure("name what to delete: a pod, a KIND and a NAME such as `node node-0`, or -f FILE")
    if args.file:
        return [_order_of(document, args.namespace) for document in read_manifests(args.file)]
    kind = args.target[0] if len(args.target) == 2 else "pod"
    namespace, name = pod_name(args.target[-1], args.namespace)
    return [SimDelete(kind=_KINDS.get(kind.lower().removesuffix("s"), kind), namespace=namespace, name=name)]


def _order_of(document: dict[str, Any], namespace: str) -> SimDelete:
    found = document.get("metadata")
    meta = found if isinstance(found, dict) else {}
    name = meta.get("name")
    if not isinstance(name, str) or not name:
        raise Failure(f"a {document['kind']} of the file has no metadata.name")
    return SimDelete(kind=document["kind"], namespace=str(meta.get("namespace") or namespace), name=name)
