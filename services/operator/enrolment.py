"""Which nodes belong to Kerf: the label that users write, the taint and the label that the operator answers with.

A node leaves in steps, each only when the one before is done:
1. Taint `kerf.dev/leaving` keeps new pods away. Bindings that were decided before it was seen may still come.
2. While pods with grants use its GPUs, its agent stays, so that slices are still enforced and released.
3. The label that the agents' DaemonSet selects is removed, and the agent ends.
4. Its taints and the other labels are removed: from now on the GPUs may be anyone's.
"""

from __future__ import annotations

from typing import Any

from services.operator.messages import Notice, Write
from services.operator.objects import Node
from shared.kube.resources import NODE
from shared.model import names
from shared.model.enrolment import asks

EFFECT = "NoSchedule"


def wanted(node: Node) -> bool:
    return asks(node.metadata.labels)


def enrolled(node: Node) -> bool:
    return node.metadata.labels.get(names.LABEL_ENROLLED) == "true"


def waits(node: Node) -> bool:
    """Whether the node is to be enrolled and is not yet."""
    return wanted(node) and not enrolled(node)


def leaves(node: Node) -> bool:
    """Whether the node was told to leave: pods with grants or its agent may still be there."""
    return any(taint.key == names.TAINT_LEAVING and taint.effect == EFFECT for taint in node.spec.taints)


def decide(
    node: Node, grants: int, *, watcher: str, others: tuple[str, ...] = (), agents: int = 0, settled: bool = True
) -> tuple[Write | None, Notice | None]:
    """What to change on a node whose GPUs so many running pods have grants for. `watcher`: the user agent that wrote
    the labels of its GPUs. `others`: pods with GPUs of other systems there; until they are gone it is not enrolled, for
    Kerf would give the same GPUs again. `agents`: pods of agents there. `settled`: whether a node that leaves has had
    its taint for so long that no Binding comes any more that was decided before."""
    if waits(node) and others:
        return None, _notice(node, "NotEnrolled", occupied_text(node.metadata.name, others), warning=True)
    if wanted(node):
        return _enrol(node)
    if not enrolled(node) and not leaves(node):
        return None, None
    if grants or not leaves(node):
        return _leave(node, grants)
    if not settled or (agents and not enrolled(node)):
        return None, None
    return (_dismiss(node), None) if enrolled(node) else _release(node, watcher)


def occupied_text(name: str, others: tuple[str, ...]) -> str:
    """Why a node is not enrolled yet, and what to do."""
    pods = "1 pod has" if len(others) == 1 else f"{len(others)} pods have"
    shown = ", ".join(others[:3]) + (", …" if len(others) > 3 else "")
    return (
        f"{pods} GPUs of another system on node {name} ({shown}); it is enrolled when they are gone: kubectl drain "
        f"{name} --ignore-daemonsets --delete-emptydir-data"
    )


def release_for_good(node: Node, watcher: str) -> Write | None:
    """Takes away all that Kerf wrote on a node, whatever its labels ask for; None where there is nothing."""
    write = _release(node, watcher)[0]
    if write is None:
        return None
    changed = bool(write.body["metadata"]["labels"]) or "spec" in write.body
    return write if changed else None


def _enrol(node: Node) -> tuple[Write | None, Notice | None]:
    taints = _taints(node, add=(names.TAINT_MANAGED,), remove=(names.TAINT_LEAVING,))
    labels: dict[str, str | None] = {} if enrolled(node) else {names.LABEL_ENROLLED: "true"}
    if taints is None and not labels:
        return None, None
    notice = None
    if labels:
        note = f"Kerf manages the GPUs of this node; taint {names.TAINT_MANAGED}:{EFFECT} was added"
        notice = _notice(node, "Enrolled", note, warning=False)
    return _patch(node, labels, taints, "node enrolled"), notice


def _leave(node: Node, grants: int) -> tuple[Write | None, Notice | None]:
    taints = _taints(node, add=(names.TAINT_MANAGED, names.TAINT_LEAVING))
    # Without its agent, for a Binding that came late, no slice is handed over or released.
    labels: dict[str, str | None] = {} if enrolled(node) else {names.LABEL_ENROLLED: "true"}
    if taints is None and not labels:
        return None, None
    pods = "1 pod uses" if grants == 1 else f"{grants} pods use"
    note = (
        f"label {names.LABEL_MANAGED} was removed; the node gets no new pods, and leaves Kerf when its agent has ended"
    )
    if grants:
        note = (
            f"label {names.LABEL_MANAGED} was removed and {pods} GPUs here; the node gets no new pods, and leaves "
            "Kerf when they have ended. To speed it up: kubectl drain, or kerf drain"
        )
    return _patch(node, labels, taints, "node is leaving"), _notice(node, "LeavingKerf", note, warning=bool(grants))


def _dismiss(node: Node) -> Write:
    return _patch(node, {names.LABEL_ENROLLED: None}, None, "the node's agent may end")


def _release(node: Node, watcher: str) -> tuple[Write | None, Notice | None]:
    have = node.metadata.labels
    taints = _taints(node, remove=(names.TAINT_MANAGED, names.TAINT_LEAVING, names.TAINT_NO_ROOM))
    labels: dict[str, str | None] = dict.fromkeys(written_by(node, watcher), None)
    if names.LABEL_ENROLLED in have:
        labels[names.LABEL_ENROLLED] = None
    note = f"Kerf no longer manages this node; taint {names.TAINT_MANAGED} and Kerf's labels were removed"
    return _patch(node, labels, taints, "node released"), _notice(node, "LeftKerf", note, warning=False)


def _notice(node: Node, reason: str, note: str, *, warning: bool) -> Notice:
    return Notice(reason=reason, note=note, node=node.metadata.name, warning=warning)


def written_by(node: Node, manager: str) -> tuple[str, ...]:
    """The labels on the node that this field manager owns (metadata.managedFields)."""
    found: set[str] = set()
    for entry in node.metadata.managed_fields:
        if entry.manager == manager:
            found |= {key[2:] for key in entry.fields_v1.metadata.labels if key.startswith("f:")}
    return tuple(sorted(label for label in found if label in node.metadata.labels))


def _taints(node: Node, *, add: tuple[str, ...] = (), remove: tuple[str, ...] = ()) -> list[dict[str, str]] | None:
    """The node's taints as they should be; None where they are."""
    have = node.spec.taints
    kept = [taint for taint in have if taint.key not in remove or taint.effect != EFFECT]
    new = [key for key in add if not any(taint.key == key and taint.effect == EFFECT for taint in have)]
    if len(kept) == len(have) and not new:
        return None
    return [
        *({"key": t.key, "effect": t.effect} | ({"value": t.value} if t.value else {}) for t in kept),
        *({"key": key, "effect": EFFECT} for key in new),
    ]


def _patch(node: Node, labels: dict[str, str | None], taints: list[dict[str, str]] | None, why: str) -> Write:
    body: dict[str, Any] = {"metadata": {"resourceVersion": node.metadata.resource_version, "labels": labels}}
    if taints is not None:
        body["spec"] = {"taints": taints or None}
    return Write(method="PATCH", resource=NODE, name=node.metadata.name, body=body, why=why)
