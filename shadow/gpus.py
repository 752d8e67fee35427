"""What each GPU has given away, by whatever scheduler, and what that leaves for pods that wait."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from shadow.peers import Device, Given, Part
from shared.book.shares import share_on
from shared.model.request import GpuAsk


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """A cluster's GPUs at one time. Free memory is counted in healthy GPUs: half of a GPU's memory is 0.5."""

    gpus: int
    """That are healthy."""
    used: int
    """With at least one pod, healthy or not."""
    free: float
    """Memory that no pod holds."""
    scattered: float
    """The part of `free` that is on GPUs with a pod."""
    stranded: float
    """The part of `free` that no waiting pod can use; 0 while none waits."""


class GpuUse:
    """A GPU with what each pod holds of it: (MiB, thousandths of compute, containers)."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.holders: dict[str, tuple[int, int, int]] = {}

    @property
    def memory_mib(self) -> int:
        return sum(mib for mib, _, _ in self.holders.values())

    @property
    def milli(self) -> int:
        return sum(milli for _, milli, _ in self.holders.values())

    @property
    def sharers(self) -> int:
        return sum(sharers for _, _, sharers in self.holders.values())

    @property
    def free(self) -> float:
        """The part of its memory that no pod holds, 0 to 1. Of a GPU that is not healthy no pod could use it: 0."""
        left = self.device.memory_mib - self.memory_mib
        return max(0, left) / self.device.memory_mib if self.device.memory_mib and self.device.healthy else 0.0

    def is_full(self, part: Part) -> bool:
        """Whether its peer has no replica, or where the part is a whole GPU no room, left on it."""
        return bool(self.holders) if part.whole else 0 < self.device.max_sharers <= self.sharers

    def takes(self, ask: GpuAsk) -> bool:
        """Whether it has room for one GPU's part of a request."""
        if not self.device.healthy:
            return False
        if ask.whole or ask.profile:
            return not self.holders
        memory_mib, milli = share_on(ask, self.device.memory_mib)
        return memory_mib <= self.device.memory_mib - self.memory_mib and milli <= self.device.milli - self.milli


_Counts = tuple[int, int, float, float]
"""GPUs, those with a pod, free memory, and that of it on GPUs with a pod."""
_NOTHING: _Counts = (0, 0, 0.0, 0.0)


class Fleet:
    """The GPUs of a cluster.

    `give` says what makes no sense; what was given counts all the same, for it is there.
    """

    def __init__(self) -> None:
        self.nodes: dict[str, dict[str, GpuUse]] = {}
        self._held: dict[str, list[GpuUse]] = {}
        self._claimed: dict[tuple[str, str], str] = {}
        """Where GPUs are only numbered: the number that stands for a UUID or a group."""
        self._changed: set[str] = set()
        """Nodes that were changed since the last moment."""
        self._counted: dict[str, _Counts] = {}
        self._total: _Counts = _NOTHING
        self._stranded: dict[str, dict[frozenset[GpuAsk], float]] = {}
        self.titles: dict[str, str] = {}
        """Pods by uid, as people name them."""

    def set_node(self, name: str, devices: tuple[Device, ...]) -> None:
        """Pods keep what they hold of these GPUs, also if the node or the GPU was gone for a time."""
        self._changed.add(name)
        self.nodes[name] = now = {device.uuid: GpuUse(device) for device in devices}
        for uid, uses in self._held.items():
            for place, use in enumerate(uses):
                if use.device.node == name and use.device.uuid in now:
                    uses[place] = now[use.device.uuid]
                    uses[place].holders[uid] = use.holders[uid]
        self._drop_claims()

    def remove_node(self, name: str) -> None:
        self._changed.add(name)
        self.nodes.pop(name, None)

    def give(self, uid: str, title: str, given: Given) -> tuple[str, ...]:
        """Counts a grant. Returns what is wrong: a GPU that does not exist, or is given away twice."""
        self.titles[uid] = title
        self._changed.add(given.node)
        wrong: list[str] = []
        touched: list[GpuUse] = []
        for part in given.parts:
            use, problem = self._use(given.node, part, touched)
            if problem:
                wrong.append(problem)
            if use is None:
                continue
            touched.append(use)
            mib, milli, sharers = use.holders.get(uid, (0, 0, 0))
            more_mib, more_milli = _amounts(part, use.device)
            use.holders[uid] = (mib + more_mib, milli + more_milli, sharers + part.sharers)
        self._held[uid] = touched
        wrong += [problem for use in dict.fromkeys(touched) if (problem := self._over(use))]
        return tuple(dict.fromkeys(wrong))

    def take(self, uid: str) -> None:
        for use in self._held.pop(uid, ()):
            use.holders.pop(uid, None)
            self._changed.add(use.device.node)
        self._drop_claims()

    def _drop_claims(self) -> None:
        """Of GPUs that no pod holds. Those of a GPU that is gone stay: it may come back with its pods."""
        for key, number in list(self._claimed.items()):
            use = self.nodes.get(key[0], {}).get(number)
            if use is not None and not use.holders:
                del self._claimed[key]

    def named(self, uid: str) -> tuple[str, ...]:
        """The GPUs that a pod holds."""
        return tuple(use.device.uuid for use in dict.fromkeys(self._held.get(uid, ())))

    def are_known(self, uid: str) -> bool:
        """Whether the objects say which GPUs a pod holds; otherwise numbers stand for some of the node's."""
        return not any(use.device.numbered for use in self._held.get(uid, ()))

    def moment(self, waiting: Iterable[GpuAsk]) -> Moment:
        """`waiting`: what the pods that wait ask for."""
        for name in self._changed:
            self._total = _plus(self._total, self._counted.pop(name, _NOTHING), -1)
            if name in self.nodes:
                self._counted[name] = _count(self.nodes[name].values())
                self._total = _plus(self._total, self._counted[name], 1)
            self._stranded.pop(name, None)
        self._changed.clear()
        asks = frozenset(waiting)
        gpus, used, free, scattered = self._total
        stranded = sum(self._stranded_of(name, asks) for name in self.nodes) if asks else 0.0
        return Moment(gpus=gpus, used=used, free=max(0.0, free), scattered=max(0.0, scattered), stranded=stranded)

    def _stranded_of(self, name: str, asks: frozenset[GpuAsk]) -> float:
        """Of one node; kept until its pods change."""
        known = self._stranded.setdefault(name, {})
        if asks not in known:
            uses = list(self.nodes[name].values())
            usable = {use.device.uuid for ask in asks for use in _with_room(uses, ask)}
            known[asks] = sum(use.free for use in uses if use.device.uuid not in usable)
        return known[asks]

    def _use(self, node: str, part: Part, touched: list[GpuUse]) -> tuple[GpuUse | None, str]:
        """The GPU that a part is of, and what is wrong with that."""
        gpus = self.nodes.get(node)
        if gpus is None:
            return None, f"node {node} does not exist, or has no GPUs"
        if part.uuid:
            return self._named(node, gpus, part.uuid)
        left = [use for use in gpus.values() if use not in touched] or list(gpus.values())
        if not left:
            return None, f"node {node} has no GPUs"
        chosen = min(left, key=lambda use: (use.is_full(part), not use.device.healthy, use.sharers, use.device.index))
        if part.whole and chosen.holders:
            holders = ", ".join(sorted({self.titles[uid] for use in gpus.values() for uid in use.holders}))
            return chosen, f"node {node} has {len(gpus)} GPUs, and none of them is left: they are held by {holders}"
        return chosen, ""

    def _named(self, node: str, gpus: dict[str, GpuUse], uuid: str) -> tuple[GpuUse | None, str]:
        found = gpus.get(self._claimed.get((node, uuid), uuid))
        if found is not None:
            return found, ""
        taken = {number for (at, _), number in self._claimed.items() if at == node}
        numbered = [use for use in gpus.values() if use.device.numbered and use.device.uuid not in taken]
        idle = [use for use in numbered if not use.holders]
        if idle:
            self._claimed[node, uuid] = idle[0].device.uuid
            return idle[0], ""
        if any(use.device.numbered for use in gpus.values()):
            return None, f"node {node} has {len(gpus)} GPUs, all are held by others, and {uuid} is one more"
        return None, f"GPU {uuid} does not exist on node {node}, which has {', '.join(sorted(gpus)) or 'no GPUs'}"

    def _over(self, use: GpuUse) -> str:
        """How a GPU is given away twice; empty where it is not."""
        device = use.device
        over = []
        if use.memory_mib > device.memory_mib:
            over.append(f"{use.memory_mib} of {device.memory_mib} MiB")
        if use.milli > device.milli:
            over.append(f"{use.milli / 10:g} of {device.milli / 10:g} % of its compute")
        if device.max_sharers and use.sharers > device.max_sharers:
            over.append(f"{use.sharers} of {device.max_sharers} shares")
        if not over:
            return ""
        holders = ", ".join(
            f"{self.titles[uid]} ({mib} MiB, {milli / 10:g} %)" for uid, (mib, milli, _) in use.holders.items()
        )
        return f"GPU {device.uuid} of node {device.node}: {' and '.join(over)} are given away, to {holders}"


def _amounts(part: Part, device: Device) -> tuple[int, int]:
    if part.whole:
        return device.memory_mib, device.milli
    memory_mib = device.memory_mib * part.memory_milli // 1000 if part.memory_milli else part.memory_mib
    # A memory of KAI's is its part of the compute, too, in KAI's own accounts; the container is not held to either.
    return memory_mib, part.milli


def _count(uses: Iterable[GpuUse]) -> _Counts:
    gpus = used = 0
    free = scattered = 0.0
    for use in uses:
        gpus, free = gpus + use.device.healthy, free + use.free
        if use.holders:
            used, scattered = used + 1, scattered + use.free
    return gpus, used, free, scattered


def _plus(one: _Counts, other: _Counts, sign: int) -> _Counts:
    return one[0] + sign * other[0], one[1] + sign * other[1], one[2] + sign * other[2], one[3] + sign * other[3]


def _with_room(node: Iterable[GpuUse], ask: GpuAsk) -> list[GpuUse]:
    """The GPUs of a node that a request could use: those with room, where there are enough of them."""
    found = [use for use in node if use.takes(ask)]
    return found if len(found) >= ask.count else []
