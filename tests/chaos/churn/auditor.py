"""An auditor that reads no book: it uses the pods that the API server lists, and the nodes' journals of what runs.
Pure.

Nothing is suspended in its cluster, because its nodes enforce nothing: a grant counts in full while its pod is bound
and alive. Except for what a pod had of another node's GPU when that node rebooted: its server is gone for good, and a
pod without a controller stays, bound by a void grant.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Literal

import msgspec

from shared.model import names
from shared.model.grant import GpuShare, Grant, decode_grant, serving_node
from shared.model.objects import Pod
from tests.chaos.audit import WHOLE_MILLI, Ask, Gpus, misfits, silent
from tests.chaos.churn.journal import Booted, Ended, Line, Started

Kind = Literal["double booking", "grant", "lost", "unsettled", "leak"]
Gpu = tuple[str, str]


class Violation(msgspec.Struct, frozen=True):
    kind: Kind
    text: str


class Gone(msgspec.Struct, frozen=True):
    """How the API server and the preemptor account for a pod that is there no more."""

    evicted: bool = False
    """By the watcher, through the Eviction API."""
    deleted: bool = False
    """By the watcher, with a DELETE: its grant was void."""
    planned: bool = False
    """An announced plan names this pod as a victim."""


class _Taken:
    """Use of one GPU, and by which pod."""

    def __init__(self) -> None:
        self.mib, self.milli, self.by = 0, 0, list[str]()

    def add(self, mib: int, milli: int, by: str) -> None:
        self.mib, self.milli = self.mib + mib, self.milli + milli
        self.by.append(by)


class Auditor:
    def __init__(self, gpus: Gpus) -> None:
        self.looks = 0
        self.used: dict[Gpu, tuple[int, int]] = {}
        """(MiB, milli) of each GPU at the last look: of grants, and of containers that still run."""
        self._gpus = gpus
        self._found: dict[Violation, None] = {}
        self._running: dict[tuple[str, str, str], Started] = {}
        self._rebooted: set[tuple[str, str]] = set()
        """(grant id, node) of what ran on a node when that went down."""
        self._grants: dict[str, str] = {}
        """By pod's uid: the annotation as it was first seen."""

    @property
    def violations(self) -> tuple[Violation, ...]:
        """Each once, in their order."""
        return tuple(self._found)

    def count(self, kind: Kind) -> int:
        return sum(violation.kind == kind for violation in self._found)

    def found(self, kind: Kind, text: str) -> None:
        self._found.setdefault(Violation(kind, text))

    # --- running containers -------------------------------------------------------------------------------------

    def heard(self, lines: Iterable[Line], nodes: Collection[str]) -> None:
        """From the journal of the process that simulates these nodes."""
        for line in lines:
            match line:
                case Booted():
                    self.gone_dark(nodes)
                case Started():
                    self._running[line.key] = line
                case Ended():
                    self._running.pop(line.key, None)

    def gone_dark(self, nodes: Collection[str]) -> None:
        """The process that simulates these nodes was killed: they are down, and nothing runs there."""
        self._rebooted.update((ended.grant_id, ended.node) for ended in self._running.values() if ended.node in nodes)
        self._running = {key: started for key, started in self._running.items() if started.node not in nodes}

    def running_on(self, node: str) -> int:
        """Containers with a slice of this node's GPUs that were heard to start and not to end."""
        return sum(started.node == node for started in self._running.values())

    # --- at any time --------------------------------------------------------------------------------------------

    def look(self, pods: Iterable[Pod], asks: Mapping[str, Ask], since: float) -> None:
        """`pods`: a consistent list that was requested at `since`. The journals were read after it arrived: what
        started before `since`, and has not ended, was running when the list was taken."""
        self.looks += 1
        everything = list(pods)
        bound = {pod.metadata.uid: (pod, grant) for pod in everything if (grant := self._grant_of(pod)) is not None}
        for text in misfits(everything, dict(asks), self._gpus):
            self.found("grant", text)
        self._one_pod_each(bound.values())
        taken: dict[Gpu, _Taken] = defaultdict(_Taken)
        granted = set()
        for pod, grant in bound.values():
            by = f"{pod.metadata.name} bound by {grant.grant_id}"
            for share in _shares(grant) if _lives(pod) else ():
                if share.node != pod.spec.node_name and (grant.grant_id, share.node) in self._rebooted:
                    continue
                granted.add((grant.grant_id, share.node, share.uuid))
                taken[share.node, share.uuid].add(share.memory_mib, share.compute_milli, by)
        for started in self._running.values():
            by = f"pod {started.uid} still running by {started.grant_id}"
            for uuid, (mib, milli) in started.gpus.items() if started.at < since else ():
                if (started.grant_id, started.node, uuid) not in granted:
                    taken[started.node, uuid].add(mib, milli, by)
        self.used = {gpu: (sums.mib, sums.milli) for gpu, sums in taken.items()}
        self._fits(taken)

    def _grant_of(self, pod: Pod) -> Grant | None:
        """Of a pod that is bound."""
        if not pod.spec.node_name:
            return None
        name, uid = pod.metadata.name, pod.metadata.uid
        text = pod.metadata.annotations.get(names.ANNOTATION_GRANT)
        if text is None:
            self.found("grant", f"{name} is bound to {pod.spec.node_name} without a grant")
            return None
        first = self._grants.setdefault(uid, text)
        if text != first:
            self.found("grant", f"the grant of {name} has changed: {first} to {text}")
        grant = decode_grant(text)
        elsewhere = sorted({share.node for share in _shares(grant)} - {pod.spec.node_name, serving_node(grant)})
        if elsewhere:
            self.found(
                "grant", f"{name} is bound to {pod.spec.node_name}, and its grant {grant.grant_id} is on {elsewhere}"
            )
        return grant

    def _one_pod_each(self, bound: Iterable[tuple[Pod, Grant]]) -> None:
        owners: dict[str, list[str]] = defaultdict(list)
        for pod, grant in bound:
            owners[grant.grant_id].append(pod.metadata.name)
        for grant_id, found in owners.items():
            if len(found) > 1:
                self.found("grant", f"grant {grant_id} is on several pods: {sorted(found)}")

    def _fits(self, taken: Mapping[Gpu, _Taken]) -> None:
        for gpu, sums in taken.items():
            size = self._gpus.get(gpu, 0)
            if sums.mib > size or sums.milli > WHOLE_MILLI:
                self.found(
                    "double booking",
                    f"{gpu}: {sums.mib} of {size} MiB, {sums.milli} milli: {'; '.join(sorted(sums.by))}",
                )

    # --- at the end ---------------------------------------------------------------------------------------------

    def lost(self, pods: Iterable[Pod], vanished: Mapping[str, Gone], controlled: Collection[str]) -> list[str]:
        """Pods that Kerf has lost, with the reason.

        `vanished`: names of pods that disappeared although their owner did not remove them. `controlled`: those of them
        that have a controller.
        """
        everything = list(pods)
        out = [f"{name} waits without a reason" for name in silent(everything)]
        running = {(started.uid, started.container, started.grant_id) for started in self._running.values()}
        for pod in everything:
            text = pod.metadata.annotations.get(names.ANNOTATION_GRANT)
            if not pod.spec.node_name or text is None or not _lives(pod):
                continue
            grant = decode_grant(text)
            idle = [name for name in grant.containers if (pod.metadata.uid, name, grant.grant_id) not in running]
            if idle:
                where = f"{pod.metadata.name} is bound to {pod.spec.node_name}"
                out.append(f"{where} by {grant.grant_id}, and {idle} does not run by it")
        for name, gone in vanished.items():
            if not ((gone.evicted and gone.planned) or (gone.deleted and name in controlled)):
                out.append(f"{name} is gone: {gone}, {'with' if name in controlled else 'without'} a controller")
        return out


def _lives(pod: Pod) -> bool:
    return pod.status.phase not in ("Succeeded", "Failed")


def _shares(grant: Grant) -> list[GpuShare]:
    return [share for container in grant.containers.values() for share in container.gpus]


def granted_mib(pods: Iterable[Pod]) -> int:
    """Of all GPUs, by the grants of pods that are bound and live."""
    texts = [pod.metadata.annotations.get(names.ANNOTATION_GRANT) for pod in pods if pod.spec.node_name and _lives(pod)]
    return sum(share.memory_mib for text in texts if text for share in _shares(decode_grant(text)))
