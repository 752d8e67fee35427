"""What happened in a watched cluster: when each pod came, where it ran, on which GPUs, when it left."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from shadow import requests
from shadow.gpus import Fleet
from shadow.objects import AnyFact, Began, Ended, NodeGone, NodeSeen, PodGone, PodSeen, SeenPod, seconds
from shadow.peers import (
    Device,
    Given,
    Surroundings,
    Unreadable,
    devices_of,
    given_to,
    groups_of,
    is_reservation,
    reservation,
)
from shadow.peers.base import RESOURCE_SHARED, replicas_of
from shared.model.objects import Node

# --- what a fleet goes through, there and with Kerf -----------------------------------------------------------------


class NodeIs(msgspec.Struct, frozen=True):
    at_s: float
    name: str
    devices: tuple[Device, ...]
    """Empty: it reports its GPUs no longer. Pods that hold them run on, and no other starts."""
    node: Node


class NodeLeaves(msgspec.Struct, frozen=True):
    at_s: float
    name: str


class Arrives(msgspec.Struct, frozen=True):
    """A pod waits from now on."""

    at_s: float
    uid: str


class Starts(msgspec.Struct, frozen=True):
    """A pod is bound, and holds nothing as far as is known; then it is given GPUs, and each further time others."""

    at_s: float
    uid: str
    given: Given


class Leaves(msgspec.Struct, frozen=True):
    at_s: float
    uid: str


Step = NodeIs | NodeLeaves | Arrives | Starts | Leaves


# --- pods -----------------------------------------------------------------------------------------------------------


class Life(msgspec.Struct, kw_only=True):
    """A pod with GPUs. Times are seconds since 1970; None: not in the time that was watched."""

    uid: str
    key: str
    pod: SeenPod
    """As it was first seen."""
    created_s: float
    """When it began to wait: its creation, the end of its last scheduling gate, or the beginning of the watching."""
    ran_before: bool = False
    """It was bound before the watching began, so its wait is not known."""
    bound_s: float | None = None
    left_s: float | None = None
    finished: bool = False
    """It ended by itself. Otherwise it was deleted."""
    node: str = ""
    given: Given | None = None
    gpus: tuple[str, ...] = ()
    """By UUID, or by number where the UUID is not known."""
    gpus_known: bool = True
    wanted: requests.Wanted | requests.NotTaken | None = None

    @property
    def deleted_s(self) -> float | None:
        """When it leaves whether it has run or not. One that ended by itself there does not before it has run."""
        return None if self.finished and self.bound_s is not None else self.left_s

    @property
    def ran_s(self) -> float | None:
        """For how long it ran there until it ended by itself; None: it did not."""
        if not self.finished or self.left_s is None or self.bound_s is None:
            return None
        return self.left_s - self.bound_s


class Other(msgspec.Struct, frozen=True):
    """A pod without GPUs on a node with GPUs: it holds CPU and memory. `pod` None: it has left."""

    at_s: float
    uid: str
    pod: SeenPod | None


class History(msgspec.Struct, kw_only=True):
    began_s: float
    ended_s: float
    source: str
    namespaces: tuple[str, ...]
    lives: dict[str, Life]
    """By uid, in the order of their creation."""
    steps: tuple[Step, ...]
    others: tuple[Other, ...]
    peers: tuple[str, ...]
    grants_read: int
    grants_wrong: tuple[str, ...]
    """One text for each grant that makes no sense."""
    unreadable: tuple[str, ...]
    """Objects that are not as their peer writes them."""


def read_history(facts: Iterable[AnyFact]) -> History:
    """`facts` in the order of their times; the first is Began."""
    reader = _Reader()
    for fact in facts:
        reader.take(fact)
    return reader.history()


class _Reader:
    def __init__(self) -> None:
        self.began = Began(at_s=0.0)
        self.now_s = 0.0
        self.around = Surroundings(nodes={}, reserved={})
        self.nodes: dict[str, Node] = {}
        self.reserved: dict[str, tuple[str, str]] = {}
        self.reservations: dict[str, str] = {}
        """The group of each reservation pod, by uid."""
        self.pods: dict[str, SeenPod] = {}
        self.lives: dict[str, Life] = {}
        self.steps: list[Step] = []
        self.others: list[Other] = []
        self.without_gpus: set[str] = set()
        self.unsliced: dict[str, requests.Wanted | requests.NotTaken | None] = {}
        """What pods ask for if no GPU is sliced by time, by uid."""
        self.cpu_only: set[str] = set()
        """Pods without GPUs that are on a node, as far as they are known."""
        self.unreadable: dict[str, None] = {}
        self.wrong: dict[str, str] = {}
        """By uid of the pod."""
        self.uncounted: dict[str, str] = {}
        """The nodes of pods that hold GPUs of nodes of which no GPU is known, by uid of the pod."""
        self.peers: dict[str, None] = {}
        self.fleet = Fleet()
        self.grants = 0

    def take(self, fact: AnyFact) -> None:
        self.now_s = max(self.now_s, fact.at_s)
        match fact:
            case Began():
                self.began = fact
            case NodeSeen():
                self._node(fact.node)
            case NodeGone():
                if self.nodes.pop(fact.name, None) is not None:
                    self.steps.append(NodeLeaves(self.now_s, fact.name))
                    self.fleet.remove_node(fact.name)
            case PodSeen():
                self._pod(fact.pod)
            case PodGone():
                self._gone(fact.uid, finished=False)
            case Ended():
                pass

    def history(self) -> History:
        replicas = self._replicas()
        for life in self.lives.values():
            sliced = replicas.get(life.node, _pending_replicas(life.pod, replicas))
            life.wanted = self.unsliced[life.uid] if sliced == 1 else requests.read(life.pod, sliced)
        self._name_missing()
        lives = sorted((life for life in self.lives.values() if life.wanted is not None), key=_age)
        known = {life.uid for life in lives}
        return History(
            began_s=self.began.at_s,
            ended_s=self.now_s,
            source=self.began.source,
            namespaces=self.began.namespaces,
            lives={life.uid: life for life in lives},
            steps=tuple(step for step in self.steps if isinstance(step, NodeIs | NodeLeaves) or step.uid in known),
            others=tuple(self.others),
            peers=tuple(self.peers),
            grants_read=self.grants,
            grants_wrong=tuple(self.wrong.values()),
            unreadable=tuple(self.unreadable),
        )

    # --- nodes ------------------------------------------------------------------------------------------------------

    def _node(self, node: Node) -> None:
        name = node.metadata.name
        try:
            devices = devices_of(node)
        except Unreadable as problem:
            self.unreadable[str(problem)] = None
            devices = ()
        self.nodes[name] = node
        self.around = Surroundings(nodes=self.nodes, reserved=self.reserved)
        before = bool(self.fleet.nodes.get(name))
        if devices or before:
            self.fleet.set_node(name, devices)
            self.steps.append(NodeIs(self.now_s, name, devices, node))
        if devices and not before:
            self._read_again(name)

    def _read_again(self, name: str) -> None:
        """Pods may be seen before their node, for each kind is watched by itself."""
        for life in self.lives.values():
            if life.node == name and life.left_s is None and not self.fleet.named(life.uid):
                self._bound(life, self.pods[life.uid], again=True)

    def _name_missing(self) -> None:
        """Pods that hold something of nodes without GPUs: nothing says whether there was room."""
        found: dict[str, list[str]] = {}
        for uid, node in self.uncounted.items():
            found.setdefault(node, []).append(self.lives[uid].key)
        for node, pods in found.items():
            self.unreadable[
                f"node {node} was not seen with GPUs that can be read; what its pods hold counts nowhere: "
                f"{', '.join(pods)}"
            ] = None

    def _replicas(self) -> dict[str, int]:
        """By node, of the nodes with GPUs."""
        found = {}
        for name in self.fleet.nodes:
            if name in self.nodes:
                try:
                    found[name] = replicas_of(self.nodes[name])
                except Unreadable as problem:
                    self.unreadable[str(problem)] = None
        return found

    # --- pods -------------------------------------------------------------------------------------------------------

    def _pod(self, pod: SeenPod) -> None:
        uid = pod.metadata.uid
        if is_reservation(pod):
            self._reservation(pod)
            return
        if pod.ended:
            self._gone(uid, finished=pod.metadata.deletion_timestamp is None, pod=pod)
            return
        if pod.spec.scheduling_gates:
            return  # it waits for a scheduler from the removal of its last gate on
        if uid not in self.pods and uid not in self.without_gpus:
            self.unsliced[uid] = requests.read(pod)
            if self.unsliced[uid] is None:
                self.without_gpus.add(uid)
        if uid in self.without_gpus:
            self._without_gpus(pod)
            return
        self.pods[uid] = pod
        life = self.lives.get(uid)
        if life is None:
            life = self._new(pod)
        if pod.spec.node_name:
            self._bound(life, pod)

    def _new(self, pod: SeenPod) -> Life:
        """It begins to wait now: the times of the machine that watches count, on both sides."""
        made_s = seconds(pod.metadata.creation_timestamp)
        before = self.now_s <= self.began.at_s
        life = Life(
            uid=pod.metadata.uid,
            key=pod.key,
            pod=pod,
            created_s=self.now_s,
            ran_before=before and bool(pod.spec.node_name) and (made_s is None or made_s < self.began.at_s),
        )
        self.lives[life.uid] = life
        self.steps.append(Arrives(life.created_s, life.uid))
        return life

    def _bound(self, life: Life, pod: SeenPod, *, again: bool = False) -> None:
        """`again`: what it holds was taken off, and has a new name, or was not counted yet."""
        if life.bound_s is None:
            life.bound_s, life.node = self.now_s, pod.spec.node_name
            # It waits no more, whether what it holds can be read or not.
            self.steps.append(Starts(self.now_s, life.uid, Given(peer="", node=life.node, parts=())))
        try:
            given = given_to(pod, self.around)
        except Unreadable as problem:
            self.unreadable[str(problem)] = None
            given = life.given if again else None
        if given is None or (given == life.given and not again):
            return
        if not self.fleet.nodes.get(given.node):
            self.uncounted[life.uid] = given.node
            return
        self.uncounted.pop(life.uid, None)
        if life.given is None:
            self.grants += 1
        self.peers[given.peer] = None
        life.given = given
        self.fleet.take(life.uid)
        wrong = self.fleet.give(life.uid, life.key, given)
        life.gpus = self.fleet.named(life.uid)
        life.gpus_known = given.known and self.fleet.are_known(life.uid)
        if wrong:
            after_s = self.now_s - self.began.at_s
            when = f"after {after_s:.1f} s" if after_s > 0 else "when the watching began"
            self.wrong.setdefault(life.uid, f"{life.key}, {when}: {'; '.join(wrong)}")
        self.steps.append(Starts(self.now_s, life.uid, given))

    def _gone(self, uid: str, *, finished: bool, pod: SeenPod | None = None) -> None:
        if uid in self.reservations:
            self.reserved.pop(self.reservations.pop(uid), None)
        if uid in self.cpu_only:
            self.cpu_only.discard(uid)
            self.others.append(Other(self.now_s, uid, None))
        life = self.lives.get(uid)
        if life is None or life.left_s is not None:
            return
        if pod is not None and life.bound_s is None and pod.spec.node_name:
            self._bound(life, pod)  # it started and ended between two sights
        life.left_s, life.finished = self.now_s, finished
        self.fleet.take(uid)
        self.steps.append(Leaves(self.now_s, uid))

    def _reservation(self, pod: SeenPod) -> None:
        if pod.ended:
            return
        group, place = reservation(pod)
        self.reservations[pod.metadata.uid] = group
        if self.reserved.get(group) == place:
            return
        self.reserved[group] = place
        # Members may have been seen before: all of them are on the GPU by its new name now.
        members = [
            life for uid, life in self.lives.items() if life.left_s is None and group in groups_of(self.pods[uid])
        ]
        for life in members:
            self.fleet.take(life.uid)
        for life in members:
            if life.bound_s is not None:
                self._bound(life, self.pods[life.uid], again=True)

    def _without_gpus(self, pod: SeenPod) -> None:
        if pod.spec.node_name and pod.metadata.uid not in self.cpu_only:
            self.cpu_only.add(pod.metadata.uid)
            self.others.append(Other(self.now_s, pod.metadata.uid, pod))


def _pending_replicas(pod: SeenPod, replicas: dict[str, int]) -> int:
    """Into how many replicas the GPUs are sliced on which a pod without a node could run."""
    most = max(replicas.values(), default=1)
    renamed = any(RESOURCE_SHARED in container.resources.limits for container in pod.spec.containers)
    return most if renamed or min(replicas.values(), default=1) > 1 else 1


def _age(life: Life) -> tuple[float, float, str]:
    return life.created_s, seconds(life.pod.metadata.creation_timestamp) or 0.0, life.key
