"""The same pods on the same nodes through Kerf: placement's own core over simulated time.

Each pod arrives when it did there, and runs as long as it did there: one that ended by itself for the same time from
its start on, one that was deleted until its deletion. What the log, the API server and the agents do is done at once,
so waits are those for capacity alone. Nothing is preempted. Where a node leaves on which Kerf has placed a pod, as one
does that was empty there and that an autoscaler removes, the pod arrives anew for the rest of its time.
"""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import count
from math import inf

import msgspec

from services.placement import messages as m
from services.placement.config import Config
from services.placement.core import Core
from services.placement.scheduling.pauses import PAUSE_MOST_S
from shadow.history import Arrives, History, Leaves, Life, NodeIs, NodeLeaves, Starts, Step
from shadow.objects import SeenPod
from shadow.peers import Given, Part, inventory_of
from shadow.requests import Wanted
from shared.contracts.events import PlacementDecided, PlacementRejected
from shared.contracts.facts import Fact, Gone, Put
from shared.contracts.log import LogMark, ReadyRecord, TermRecord
from shared.contracts.node_commands import NodeSyncAnswer
from shared.model import names
from shared.model.gpu import Inventory
from shared.model.grant import Grant, decode_grant, encode_grant
from shared.model.objects import Node, Pod, PodStatus
from shared.model.timestamps import seconds_text

_BOOT = "shadow"
_PAUSE_S = 1.0
"""Longer than placement gathers a batch."""
_TERM = 100
_ORDER: dict[type[Step], int] = {NodeIs: 0, NodeLeaves: 1, Leaves: 3, Arrives: 4}
"""Of one time: nodes come first, then pods leave, then they arrive."""
_RAN = 2
"""Pods that ran when the watching began: they come to the nodes that there are, and are placed before all others."""


class Placed(msgspec.Struct, frozen=True, kw_only=True):
    """Where and when Kerf starts a pod, and why there."""

    at_s: float
    node: str
    gpus: tuple[str, ...]
    why: str


class Lost(msgspec.Struct, kw_only=True):
    """A pod that arrived anew because its node left."""

    node: str
    since_s: float
    """When that was, the last time."""
    waited_s: float = 0.0
    """For another place, all times together."""
    waits: bool = True
    """It has none yet."""


class Rerun(msgspec.Struct, frozen=True, kw_only=True):
    placed: dict[str, Placed]
    """By uid; the first place."""
    lost: dict[str, Lost]
    """By uid."""
    waits: dict[str, str]
    """Why a pod waited when it was last refused a place, by uid."""
    steps: tuple[Step, ...]


def rerun(history: History, policy: str = "kerf") -> Rerun:
    """`policy`: placement's, for pods that name none."""
    return _Kerf(history, policy).run()


class _Kerf:
    def __init__(self, history: History, policy: str) -> None:
        self._history = history
        self._now = history.began_s
        self._clock = history.began_s
        """Of the core; it runs ahead by the pauses of the turns."""
        self._turned_s = history.began_s
        """The time of the last turn."""
        self._numbers = count(1001)
        self._todo: list[tuple[float, int, int, Step]] = []
        """By time, order and number."""
        self._nodes: dict[str, Node] = {}
        self._pods: dict[str, Pod] = {}
        self._wake_s = inf
        """When a pod that pauses is to be tried again."""
        self._awake_until_s = 0.0
        """Until when that is done: what has changed by now was tried by then."""
        self._bound: list[tuple[str, str, Grant | None]] = []
        self._steps: list[Step] = []
        self._placed: dict[str, Placed] = {}
        self._ends: dict[str, float] = {}
        """When pods end that ended by themselves there; inf for one that waits anew."""
        self._rest_s: dict[str, float] = {}
        """For how long pods run on that have arrived anew."""
        self._lost: dict[str, Lost] = {}
        self._waits: dict[str, str] = {}
        self._why: dict[str, str] = {}
        self._core = Core("shadow", Config(policy=policy))

    def run(self) -> Rerun:
        for step in self._history.steps:
            if isinstance(step, NodeIs | NodeLeaves):
                self._at(step)
        for life in self._history.lives.values():
            if isinstance(life.wanted, Wanted):
                self._at(Arrives(life.created_s, life.uid), _RAN if life.ran_before else None)
                if life.deleted_s is not None:
                    self._at(Leaves(life.deleted_s, life.uid))
        records = ((_TERM - 2, TermRecord(holder="before")), (_TERM - 1, ReadyRecord(term=_TERM - 2)))
        self._send(m.TermTaken(term=_TERM, records=records, mark=LogMark(term=_TERM - 2, sequence=_TERM - 1)))
        others = list(self._history.others)
        while True:
            next_s = self._todo[0][0] if self._todo else inf
            self._now = min(next_s, others[0].at_s if others else inf, self._wake_s)
            if self._now > self._history.ended_s:
                break
            facts: list[Fact] = []
            while others and others[0].at_s <= self._now:
                other = others.pop(0)
                facts += self._other(other.uid, other.pod)
            inventories: list[Inventory] = []
            ran = self._now <= self._history.began_s and bool(self._todo) and self._todo[0][1] <= _RAN
            while self._todo and self._todo[0][0] <= self._now and not (ran and self._todo[0][1] > _RAN):
                facts += self._happens(heappop(self._todo)[-1], inventories)
            self._turn(facts, inventories)
        for lost in self._lost.values():
            if lost.waits:
                lost.waited_s += self._history.ended_s - lost.since_s
        return Rerun(placed=self._placed, lost=self._lost, waits=self._waits, steps=tuple(self._steps))

    def _at(self, step: Step, order: int | None = None) -> None:
        heappush(self._todo, (step.at_s, _ORDER[type(step)] if order is None else order, next(self._numbers), step))

    # --- what happens -----------------------------------------------------------------------------------------------

    def _happens(self, step: Step, inventories: list[Inventory]) -> list[Fact]:
        match step:
            case NodeIs():
                self._steps.append(step)
                self._nodes[step.name] = _node(step.node, self._version())
                inventories.append(inventory_of(step.name, step.devices, _BOOT, int(self._version())))
                return [Put(object=self._nodes[step.name])]
            case NodeLeaves():
                self._steps.append(step)
                gone = self._nodes.pop(step.name, None)
                facts: list[Fact] = [] if gone is None else [Gone(object=gone)]
                for uid, pod in list(self._pods.items()):
                    if pod.spec.node_name == step.name:
                        facts += self._leaves(uid)
                        if uid in self._placed:
                            facts += self._arrives_anew(uid, step)
                return facts
            case Arrives():
                return self._arrives(step)
            case Leaves():
                ended_before = self._ends.get(step.uid, step.at_s) != step.at_s
                return [] if ended_before else self._leaves(step.uid)
            case Starts():
                raise AssertionError("starts are decided here")

    def _arrives(self, step: Arrives) -> list[Fact]:
        pod = self._pods[step.uid] = self._pod(self._history.lives[step.uid])
        self._steps.append(step)
        return [Put(object=pod)]

    def _arrives_anew(self, uid: str, left: NodeLeaves) -> list[Fact]:
        before_s = self._lost[uid].waited_s if uid in self._lost else 0.0
        self._lost[uid] = Lost(node=left.name, since_s=self._now, waited_s=before_s)
        if uid in self._ends:
            self._rest_s[uid], self._ends[uid] = self._ends[uid] - self._now, inf
        return self._arrives(Arrives(self._now, uid))

    def _leaves(self, uid: str) -> list[Fact]:
        pod = self._pods.pop(uid, None)
        if pod is None:
            return []
        self._waits_no_more(uid)
        self._steps.append(Leaves(self._now, uid))
        return [Gone(object=pod)]

    def _waits_no_more(self, uid: str) -> None:
        lost = self._lost.get(uid)
        if lost is not None and lost.waits:
            lost.waited_s, lost.waits = lost.waited_s + self._now - lost.since_s, False

    def _other(self, uid: str, pod: SeenPod | None) -> list[Fact]:
        """A pod that only takes CPU and memory, as bound there."""
        before = self._pods.pop(uid, None)
        if pod is None:
            return [] if before is None else [Gone(object=before)]
        meta = msgspec.structs.replace(pod.metadata, resource_version=self._version(), annotations={})
        spec = msgspec.structs.replace(pod.spec, volumes=(), resource_claims=())
        made = self._pods[uid] = Pod(metadata=meta, spec=spec, status=PodStatus(phase="Running"))
        return [Put(object=made)]

    def _pod(self, life: Life) -> Pod:
        if not isinstance(life.wanted, Wanted):
            raise TypeError(f"pod {life.key} cannot be read by Kerf, and so it takes no part")
        pod = life.wanted.pod
        meta = msgspec.structs.replace(
            pod.metadata,
            uid=life.uid,
            resource_version=self._version(),
            creation_timestamp=pod.metadata.creation_timestamp or seconds_text(life.created_s),
            deletion_timestamp=None,
        )
        return msgspec.structs.replace(pod, metadata=meta, status=PodStatus(phase="Pending"))

    def _turn(self, facts: list[Fact], inventories: list[Inventory]) -> None:
        """The core's turn at this time: until nothing more can start."""
        self._clock += self._now - self._turned_s
        self._turned_s, changed = self._now, bool(facts)
        # Nodes with their GPUs come before pods, or a pod would first be told that no agent has answered. Nothing is
        # answered, and so nothing decided, before all of this moment is known.
        self._send(
            m.BeatSeen(tuple(self._nodes)),
            m.FactsSeen(tuple(fact for fact in facts if isinstance(fact.object, Node))),
            *map(m.InventorySeen, inventories),
            m.FactsSeen(tuple(fact for fact in facts if not isinstance(fact.object, Node))),
        )
        while True:
            self._clock += _PAUSE_S
            self._send(m.BeatSeen(tuple(self._nodes)))
            self._send(m.Tick())
            if not self._bound:
                break
            changed = True
            self._run_bound()
        if changed:
            self._awake_until_s = self._now + PAUSE_MOST_S + _PAUSE_S
        ends = self._core.queue.next_pause_end()
        wake_s = inf if ends is None else self._now + max(_PAUSE_S, ends - self._clock)
        self._wake_s = wake_s if wake_s <= self._awake_until_s else inf

    def _run_bound(self) -> None:
        """What was decided since runs."""
        bound, self._bound = self._bound, []
        facts: list[Fact] = []
        for uid, node, grant in bound:
            if uid not in self._pods:
                continue  # it was deleted at that moment
            pod, life = self._pods[uid], self._history.lives[uid]
            notes = pod.metadata.annotations | ({names.ANNOTATION_GRANT: encode_grant(grant)} if grant else {})
            meta = msgspec.structs.replace(pod.metadata, resource_version=self._version(), annotations=notes)
            self._pods[uid] = msgspec.structs.replace(
                pod,
                metadata=meta,
                spec=msgspec.structs.replace(pod.spec, node_name=node),
                status=PodStatus(phase="Running", start_time=seconds_text(self._now)),
            )
            facts.append(Put(object=self._pods[uid]))
            given = _given(node, grant)
            gpus = tuple(dict.fromkeys(part.uuid for part in given.parts))
            self._placed.setdefault(uid, Placed(at_s=self._now, node=node, gpus=gpus, why=self._why.get(uid, "")))
            self._waits_no_more(uid)
            self._steps.append(Starts(self._now, uid, given))
            if life.ran_s is not None:
                self._ends[uid] = self._now + self._rest_s.get(uid, life.ran_s)
                self._at(Leaves(self._ends[uid], uid))
        self._send(m.FactsSeen(tuple(facts)))

    # --- the core's surroundings ------------------------------------------------------------------------------------

    def _send(self, *events: m.Input) -> None:
        commands = [command for event in events for command in self._core.handle(event, self._clock)]
        todo = [event for command in commands for event in self._answers(command)]
        while todo:
            for command in self._core.handle(todo.pop(0), self._clock):
                todo += self._answers(command)

    def _answers(self, command: m.Command) -> list[m.Input]:
        match command:
            case m.Append():
                return [m.Appended(int(self._version()))]
            case m.TakeSnapshot():
                return [m.SnapshotSeen((), 0)]
            case m.SendSync():
                sync = command.sync
                return [
                    m.SyncAnswered(
                        NodeSyncAnswer(node=sync.node, boot_id=_BOOT, term=sync.term, accepted=True, number=sync.number)
                    )
                ]
            case m.SendGrant():
                return [m.GrantAcknowledged(command.node, command.grant.grant.grant_id)]
            case m.SendRelease():
                return [m.ReleaseSeen(command.node, command.release.grant_id)]
            case m.SendBinds():
                self._bound += [
                    (bind.uid, bind.node, decode_grant(bind.grant) if bind.grant else None) for bind in command.binds
                ]
            case m.Again():
                return [m.Tick()]
            case m.Later():
                self._clock += command.seconds
                return [m.Wake()]
            case m.Publish():
                self._hear(command)
        return []

    def _hear(self, command: m.Publish) -> None:
        match command.event:
            case PlacementDecided() as event:
                scores = ", ".join(f"{name} {value}" for name, value in event.scores.items() if value)
                had = f"{event.feasible_nodes} of {len(self._nodes)} nodes had room"
                self._why[event.uid] = had + (f"; scores of {event.node}: {scores}" if scores else "")
            case PlacementRejected() as event:
                self._waits[event.uid] = event.explanation.sentence

    def _version(self) -> str:
        return str(next(self._numbers))


def _node(node: Node, version: str) -> Node:
    """The node as one of Kerf's. Its own labels and taints stay: pods chose by them there."""
    meta = node.metadata
    return msgspec.structs.replace(
        node,
        metadata=msgspec.structs.replace(
            meta, resource_version=version, labels=meta.labels | {names.LABEL_MANAGED: "true"}, annotations={}
        ),
    )


def _given(node: str, grant: Grant | None) -> Given:
    shares = [share for container in grant.containers.values() for share in container.gpus] if grant else []
    return Given(
        peer="kerf",
        node=node,
        parts=tuple(Part(uuid=share.uuid, memory_mib=share.memory_mib, milli=share.compute_milli) for share in shares),
    )
