"""What the tests of the filters share: pods written as in a manifest, and the verdict of all filters on a node.

The pod `p` of namespace `team` is checked against node `n`; `o` is another node in another zone. Pods named after a
node run there. kube-scheduler gives the same answers (tests/cluster/test_oracle.py).
"""

from __future__ import annotations

from typing import Any

import msgspec

from shared.book.book import Book
from shared.book.states import pod_state
from shared.contracts.facts import Put
from shared.model.objects import Namespace, Node, Pod, PodSpec, Taint
from shared.scheduling.filters import filters
from tests.support import build

ZONE, HOST = "topology.kubernetes.io/zone", "kubernetes.io/hostname"
ALWAYS = {"restartPolicy": "Always"}
Spec = dict[str, Any]


def pod(
    name: str = "p", *, on: str = "", namespace: str = "team", labels: dict[str, str] | None = None, **spec: Any
) -> Pod:
    """`spec` as in a manifest."""
    plain = build.pod(name, namespace=namespace, labels=labels)
    containers = [{"name": "c"}]
    return msgspec.structs.replace(
        plain,
        spec=msgspec.convert({"containers": containers, "nodeName": on, "schedulerName": "kerf", **spec}, PodSpec),
    )


def requests(**amounts: str) -> Spec:
    return {"name": "c", "resources": {"requests": {k.replace("_", "-"): v for k, v in amounts.items()}}}


def verdict(asked: Pod, *others: Pod | Node | Namespace, node: Node | None = None, on: str = "n") -> str:
    """The first reason's code, empty if the node passes."""
    book = Book()
    default = node or build.node("n", cpu="4", memory="8Gi", labels={ZONE: "a"})
    for thing in (default, build.node("o", cpu="4", memory="8Gi", labels={ZONE: "b"}), *others):
        book.apply(Put(object=thing))
    state = pod_state(asked)
    assert not state.refusal
    for kind in filters().every:
        check = kind.prepare(state, book)
        reason = None if check is None else check(book.nodes[on])
        if reason is not None:
            assert reason.sentence
            assert reason.helps
            return reason.code
    return ""


def labelled(**labels: str) -> Node:
    return build.node("n", labels={ZONE: "a", **labels})


def tainted(*taints: tuple[str, str, str]) -> Node:
    return build.node("n", taints=tuple(Taint(key=k, value=v, effect=e) for k, v, e in taints))


def db(name: str, on: str, **rest: Any) -> Pod:
    return pod(name, on=on, labels={"app": "db"}, **rest)
