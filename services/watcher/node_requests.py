"""What the pods of each node request of the resources that it advertises. Pure.

The kubelet admits a pod only if the requests of all pods on the node fit into the node's status. Placement counts by
GPU and may grant more than the sums say: a paused pod and the pod that runs instead of it request the same GPU, and a
slice is returned before the kubelet has seen its pod end. So the watcher raises a node's amounts before such a Binding.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from shared.book.advertised import requested
from shared.book.states import ENDED_PHASES
from shared.model.objects import Node, Pod
from shared.model.units import QuantityError, whole

RAISED_BY = 4
"""Raised amounts are larger than needed by one part of so many: the next Bindings there need no write of their own."""
KEEP_RAISED_S = 600.0
"""An amount that was raised stays for so long, whichever watcher raised it, or a busy node would be written to at every
Binding."""
SETTLE_S = 20.0
"""An amount that is too high for another reason stays for so long: a Binding of another watcher may be under way."""

Amounts = dict[str, int]


class _Counted(msgspec.Struct, frozen=True):
    node: str
    amounts: Amounts


class _High(msgspec.Struct, frozen=True):
    amounts: Amounts
    since: float
    raised: bool
    """For a Binding, and not because the node had more GPUs before."""


class NodeRequests:
    """Sums by node over pods that are on it, and over pods whose Binding to it is under way."""

    def __init__(self) -> None:
        self._counted: dict[str, _Counted] = {}
        self._sums: dict[str, Amounts] = {}
        self._high: dict[str, _High] = {}
        """By node: amounts above what it has, and since when they are so."""

    def pod_seen(self, pod: Pod) -> None:
        """Takes in a pod's newest state. One that is not bound stays as a Binding under way has counted it."""
        uid = pod.metadata.uid
        if pod.status.phase in ENDED_PHASES:
            self.forget(uid)
        elif pod.spec.node_name and (uid not in self._counted or self._counted[uid].node != pod.spec.node_name):
            self.count(pod, pod.spec.node_name)

    def count(self, pod: Pod, node: str) -> Amounts:
        """Counts a pod on a node. Returns what all pods there request."""
        self.forget(pod.metadata.uid)
        sums = self._sums.setdefault(node, {})
        try:
            amounts = {name: amount for name, amount in requested(pod).items() if amount}
        except QuantityError:
            amounts = {}  # a static pod's nonsense; Kerf grants nothing to it
        for name, amount in amounts.items():
            sums[name] = sums.get(name, 0) + amount
        self._counted[pod.metadata.uid] = _Counted(node, amounts)
        return sums

    def forget(self, uid: str) -> None:
        """The pod has ended, is gone, or its Binding was refused."""
        counted = self._counted.pop(uid, None)
        if counted is None:
            return
        # A pod that asks for none of Kerf's resources, or for 0 of them, may outlive its node's sums.
        sums = self._sums.get(counted.node, {})
        for name, amount in counted.amounts.items():
            sums[name] -= amount
        if not any(sums.values()):
            self._sums.pop(counted.node, None)

    def node_gone(self, node: str) -> None:
        self._high.pop(node, None)

    def lacking(self, node: Node) -> Amounts:
        """The amounts to write before a Binding, so that the kubelet has room for all pods that are counted. Empty if
        it has; resources that the node does not advertise are not counted by the kubelet either."""
        sums = self._sums.get(node.metadata.name, {})
        have = _advertised(node, sums)
        return {
            name: amount + -(-amount // RAISED_BY) for name, amount in sums.items() if amount > have.get(name, amount)
        }

    def raised(self, node: Node, now: float) -> Amounts:
        """What is `lacking`, noted as written."""
        lacking = self.lacking(node)
        if lacking:
            self._high[node.metadata.name] = _High(lacking, now, raised=True)
        return lacking

    def to_write(self, node: Node, amounts: Mapping[str, int], now: float) -> Amounts:
        """What to write so that a node advertises `amounts`, or what its pods request where that is more."""
        have, sums = _advertised(node, amounts), self._sums.get(node.metadata.name, {})
        target = {name: max(amount, sums.get(name, 0)) for name, amount in amounts.items()}
        raised = any(target[name] > amount for name, amount in amounts.items())
        kept = self._is_kept(node.metadata.name, have, target, raised=raised, now=now)
        return {
            name: amount
            for name, amount in target.items()
            if name not in have or have[name] < amount or (have[name] > amount and not kept)
        }

    def _is_kept(self, node: str, have: Amounts, target: Amounts, *, raised: bool, now: float) -> bool:
        """Whether amounts above their target stay for now. Another watcher may have raised them a moment ago, for a
        Binding that is not seen here yet."""
        above = {name: have[name] for name, amount in target.items() if have.get(name, 0) > amount}
        if not above:
            self._high.pop(node, None)
            return False
        high = self._high.get(node)
        if high is None or any(high.amounts.get(name) != amount for name, amount in above.items()):
            high = self._high[node] = _High(above, now, raised or (high is not None and high.raised))
        return now - high.since < (KEEP_RAISED_S if high.raised or raised else SETTLE_S)


def _advertised(node: Node, wanted: Iterable[str]) -> Amounts:
    """Those of these resources that the node has in its status."""
    allocatable, found = node.status.allocatable, Amounts()
    for name in wanted:
        if name in allocatable:
            try:
                found[name] = whole(allocatable[name])
            except QuantityError:
                found[name] = 0  # written anew
    return found
