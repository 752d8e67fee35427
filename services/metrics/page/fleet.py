"""The fleet as the page draws it: GPUs with their slices, the queue, the newest decisions. Pure.

Everything that changes gets the next number; a browser says which number it has seen, and gets what came after it. So
no state is kept for a browser, and one that is slow gets fewer and larger changes.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from typing import Any

import msgspec

from services.metrics.usage import Began
from shared.contracts.events import (
    Event,
    GpuStateChanged,
    GrantEnded,
    PlacementDecided,
    PlacementRejected,
    PodBound,
    PreemptionExecuted,
    SliceEnforced,
    SliceReleased,
)
from shared.contracts.samples import SliceUse, UsageSample
from shared.model.gpu import Inventory

NEWEST_DECISIONS = 200
MAX_QUEUE = 500
"""Pending pods that are shown; the number of all is shown beside them."""
MAX_WAITING = 20_000
ENDED_KEPT = 50_000

SliceRow = tuple[str, int, int, str, str, str, str, str]
"""GPU uuid, memory_mib, compute_milli, phase (starting, running), namespace, pod, container, strategy."""


class GpuRow(msgspec.Struct, frozen=True, array_like=True):
    uuid: str
    model: str
    memory_mib: int
    state: str
    reason: str
    mig: bool


class NodeRow(msgspec.Struct, frozen=True):
    """One node, as it travels."""

    name: str
    gpus: tuple[GpuRow, ...]
    slices: tuple[SliceRow, ...]


class Pending(msgspec.Struct, frozen=True):
    namespace: str
    name: str
    since_s: float
    code: str
    sentence: str
    helps: str


class Decision(msgspec.Struct, frozen=True):
    """A line of what happened: decided, rejected, bound, ended, enforced, preempted, gpu."""

    number: int
    at_s: float
    kind: str
    namespace: str
    name: str
    node: str
    text: str


class Changes(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a browser that has seen `since` has not."""

    version: int
    nodes: tuple[NodeRow, ...] = ()
    gone: tuple[str, ...] = ()
    decisions: tuple[Decision, ...] = ()
    """The newest first."""
    queue: tuple[Pending, ...] | None = None
    """None: as before."""
    pending: int = 0
    reset: bool = False
    """The browser saw another process: it forgets what it has."""


class _Node:
    def __init__(self) -> None:
        self.gpus: tuple[GpuRow, ...] = ()
        self.version = 0


class Fleet:
    def __init__(self, started_ms: int = 0) -> None:
        """Numbers begin with the time of the start, so that those of an earlier process are known as such."""
        self._first = self.version = started_ms * 1000
        self._nodes: dict[str, _Node] = {}
        """Those with an inventory."""
        self._slices: dict[str, dict[tuple[str, str], tuple[SliceRow, ...]]] = {}
        """By node, then by grant and container: they outlive an inventory that is lost and published again."""
        self._where: dict[str, set[str]] = {}
        """Nodes by grant."""
        self._decided: OrderedDict[str, str] = OrderedDict()
        """The newest grant by pod uid."""
        self._ended: OrderedDict[str, None] = OrderedDict()
        self._gone: OrderedDict[str, int] = OrderedDict()
        """Version by node that is no more."""
        self._decisions: deque[tuple[int, Decision]] = deque(maxlen=NEWEST_DECISIONS)
        self._waiting: OrderedDict[str, Pending] = OrderedDict()
        self._queue_version = 0
        self._use: OrderedDict[tuple[str, str, str], tuple[SliceUse, ...]] = OrderedDict()
        """By the node that says it, namespace and pod."""
        self._numbers = 0

    # --- in ---------------------------------------------------------------------------------------------------

    def event(self, event: Event | None, at_s: float) -> None:
        match event:
            case PlacementDecided():
                self._no_longer_waits(event.uid)
                self._starting(event)
                text = f"on {event.node}, after {_duration(event.waited_ms / 1000)}"
                self._tell(at_s, "decided", event.namespace, event.name, event.node, text)
            case PlacementRejected(explanation=why):
                self._waits(event, at_s)
                self._tell(at_s, "rejected", event.namespace, event.name, "", why.sentence)
            case PodBound():
                self._no_longer_waits(event.uid)
            case SliceEnforced():
                self._running(event)
                now = f"{event.strategy}, {event.promise}" if event.gpus else "suspended, its memory is on the host"
                text = f"{event.container} on {event.node}: {now}"
                self._tell(at_s, "enforced", event.namespace, event.name, event.node, text)
            case SliceReleased():
                self.end(event.grant_id)
            case GrantEnded():
                self.end(event.grant_id)
                text = f"capacity is back on {event.node}" + (f": {event.reason}" if event.reason else "")
                self._tell(at_s, "ended", event.namespace, event.name, event.node, text)
            case GpuStateChanged():
                text = f"{event.uuid} is {event.state}" + (f": {event.reason}" if event.reason else "")
                self._tell(at_s, "gpu", "", event.node, event.node, text)
            case PreemptionExecuted(plan=plan):
                for pod in plan.beneficiaries[:1]:
                    text = f"{len(plan.victims)} pods were preempted for it"
                    self._tell(at_s, "preempted", pod.namespace, pod.name, pod.node, text)

    def inventory(self, name: str, inventory: Inventory | None) -> None:
        if inventory is None or not inventory.gpus:
            if self._nodes.pop(name, None) is not None:
                self._gone[name] = self._next()
                if len(self._gone) > ENDED_KEPT:
                    self._gone.popitem(last=False)
            return
        self._gone.pop(name, None)
        node = self._nodes.setdefault(name, _Node())
        node.gpus = tuple(
            GpuRow(g.uuid, g.model, g.memory_mib, g.state, g.reason, g.mig_enabled)
            for g in sorted(inventory.gpus, key=lambda g: g.index)
        )
        node.version = self._next()

    def restore(self, live: Iterable[Began]) -> None:
        for was in live:
            rows = tuple(
                (uuid, mib, milli, "running", was.namespace, was.pod, was.container, "")
                for uuid, mib, milli in was.gpus
            )
            self._place(was.grant_id, was.container, was.node, rows)

    def sample(self, sample: UsageSample) -> None:
        """What slices use now. It changes no version: it is read with a pod's story."""
        found: dict[tuple[str, str, str], list[SliceUse]] = {}
        for gpu in sample.gpus:
            for use in gpu.slices:
                found.setdefault((sample.node, use.namespace, use.name), []).append(use)
        for key, uses in found.items():
            self._use[key] = tuple(uses)
            self._use.move_to_end(key)
        while len(self._use) > ENDED_KEPT:  # of pods that ended while they were on no GPU
            self._use.popitem(last=False)

    def reconcile(self, uids: tuple[str, ...], count: int) -> None:
        """Drops pods that placement does not list any more: a deleted pod is no event. `count` is of all that wait."""
        if len(uids) < count:
            return  # not all of them were named
        for uid in self._waiting.keys() - set(uids):
            self._no_longer_waits(uid)

    # --- out --------------------------------------------------------------------------------------------------

    def changes(self, since: int) -> Changes:
        """What has changed after `since`; 0: all. A number that is not of this process gets all, and a reset."""
        reset = since != 0 and not self._first <= since <= self.version
        since = 0 if reset else since
        return Changes(
            version=self.version,
            nodes=tuple(self._row(name, node) for name, node in self._nodes.items() if node.version > since),
            gone=tuple(name for name, version in self._gone.items() if version > since) if since else (),
            decisions=tuple(said for version, said in reversed(self._decisions) if version > since),
            queue=tuple(list(self._waiting.values())[:MAX_QUEUE]) if self._queue_version > since or not since else None,
            pending=len(self._waiting),
            reset=reset,
        )

    def starting(self) -> set[str]:
        """Returns the grants of slices that are not enforced: of a pod that is deleted while it is bound no event
        comes."""
        return {
            grant
            for slices in self._slices.values()
            for (grant, _), rows in slices.items()
            if any(row[3] == "starting" for row in rows)
        }

    def slices_of(self, namespace: str, pod: str) -> list[dict[str, Any]]:
        """The slices of a pod, with their node and what they use where an agent has measured it."""
        found: list[dict[str, Any]] = []
        for name, slices in self._slices.items():
            uses = {use.container: use for use in self._use.get((name, namespace, pod), ())}
            gpus = self._nodes[name].gpus if name in self._nodes else ()
            for rows in slices.values():
                for uuid, mib, milli, phase, ns, of, container, strategy in rows:
                    if (ns, of) == (namespace, pod):
                        gpu = next((g for g in gpus if g.uuid == uuid), None)
                        use = uses.get(container) or uses.get("")
                        found.append({
                            "node": name, "uuid": uuid, "model": gpu.model if gpu else "", "container": container,
                            "gpu_memory_mib": gpu.memory_mib if gpu else 0, "memory_mib": mib, "compute_milli": milli,
                            "phase": phase, "strategy": strategy, "use": use,
                        })  # fmt: skip
        return found

    # --- inside -----------------------------------------------------------------------------------------------

    def _next(self) -> int:
        self.version += 1
        return self.version

    def _changed(self, name: str) -> None:
        """The slices of a node."""
        version = self._next()
        if name in self._nodes:
            self._nodes[name].version = version

    def _row(self, name: str, node: _Node) -> NodeRow:
        return NodeRow(name, node.gpus, tuple(row for rows in self._slices.get(name, {}).values() for row in rows))

    def _starting(self, event: PlacementDecided) -> None:
        if event.grant is None or event.grant.grant_id in self._ended:
            return
        before = self._decided.pop(event.uid, event.grant.grant_id)
        if before != event.grant.grant_id:  # a pod is decided again once that decision is void
            self.end(before)
        self._decided[event.uid] = event.grant.grant_id
        if len(self._decided) > ENDED_KEPT:
            self._decided.popitem(last=False)
        for container, part in event.grant.containers.items():
            by_node: dict[str, list[SliceRow]] = {}
            for share in part.gpus:
                by_node.setdefault(share.node, []).append(
                    (share.uuid, share.memory_mib, share.compute_milli, "starting", event.namespace, event.name,
                     container, part.strategy)
                )  # fmt: skip
            for node, rows in by_node.items():
                if (event.grant.grant_id, container) not in self._slices.get(node, {}):
                    self._place(event.grant.grant_id, container, node, tuple(rows))

    def _running(self, event: SliceEnforced) -> None:
        if event.grant_id in self._ended:
            return
        rows = tuple(
            (uuid, mib, milli, "running", event.namespace, event.name, event.container, event.strategy)
            for uuid, (mib, milli) in sorted(event.gpus.items())
        )
        self._place(event.grant_id, event.container, event.node, rows)

    def _place(self, grant: str, container: str, name: str, rows: tuple[SliceRow, ...]) -> None:
        self._slices.setdefault(name, {})[grant, container] = rows
        self._changed(name)
        self._where.setdefault(grant, set()).add(name)

    def end(self, grant: str) -> None:
        """Its slices are over."""
        self._ended[grant] = None
        if len(self._ended) > ENDED_KEPT:
            self._ended.popitem(last=False)
        for name in self._where.pop(grant, ()):
            slices = self._slices[name]
            for key in [key for key in slices if key[0] == grant]:
                for row in slices.pop(key):
                    self._use.pop((name, row[4], row[5]), None)
            if not slices:
                del self._slices[name]
            self._changed(name)

    def _waits(self, event: PlacementRejected, at_s: float) -> None:
        why, before = event.explanation, self._waiting.get(event.uid)
        self._waiting[event.uid] = Pending(
            namespace=event.namespace,
            name=event.name,
            since_s=before.since_s if before else at_s - why.waiting_s,
            code=why.summary[0].code if why.summary else "",
            sentence=why.sentence,
            helps=why.helps[0] if why.helps else "",
        )
        if len(self._waiting) > MAX_WAITING:
            self._waiting.popitem(last=False)
        self._queue_version = self._next()

    def _no_longer_waits(self, uid: str) -> None:
        if self._waiting.pop(uid, None) is not None:
            self._queue_version = self._next()

    def _tell(self, at_s: float, kind: str, namespace: str, name: str, node: str, text: str) -> None:  # noqa: PLR0917
        self._numbers += 1
        said = Decision(self._numbers, at_s, kind, namespace, name, node, text)
        self._decisions.append((self._next(), said))


def _duration(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
