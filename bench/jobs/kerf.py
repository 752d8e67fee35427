"""The same jobs through Kerf: the cores of placement and of the preemptor, wired as on the bus.

What the log, the API server, the agent and the jobs' controller do is done at once. An evicted pod is created again by
its controller, as the youngest. Nothing here decides anything.
"""

from __future__ import annotations

from collections.abc import Container
from datetime import UTC, datetime
from heapq import heappop, heappush

import msgspec

from bench.jobs.replay import Evict, Order, Scheduler, Share, Start
from bench.jobs.trace import Job
from bench.openb.trace import GPU_MIB, Pods, Trace, TracePod
from services.placement import messages as m
from services.placement.core import Core
from services.placement.explain.pending_reasons import PendingReasons
from services.preemptor import messages as pm
from services.preemptor.config import Config
from services.preemptor.core import Core as Preemptor
from shared.contracts.commands import Patch
from shared.contracts.facts import Fact, Gone, Put
from shared.contracts.log import LogMark, ReadyRecord, TermRecord
from shared.contracts.node_commands import NodeGrant, NodeSyncAnswer
from shared.contracts.policy import CONFIG_MAP, CONFIG_NAMESPACE, QUEUES_KEY
from shared.model import names
from shared.model.gpu import Gpu, Inventory
from shared.model.grant import Grant, decode_grant, encode_grant
from shared.model.kube_object import Meta, OwnerReference, Quantities
from shared.model.objects import ConfigMap, Node, NodeStatus, Pod, PodStatus

NODE = "node"
_NAMESPACE = "jobs"
BEGAN_S = datetime(2026, 1, 1, tzinfo=UTC).timestamp()
_PATIENT_S = 1.0
"""Beyond the preemptor's patience and beyond placement's longest wait for a batch."""
_PRIORITY = 1000


class Use(msgspec.Struct, frozen=True):
    """How an installation is set up."""

    queues: bool = False
    """A queue for each QoS class, all of equal weight."""
    priorities: bool = False
    """All classes but BE are above it."""
    evicts: bool = True
    """Without, all pods say preemptionPolicy Never: free GPUs go to the queue that they are owed to, and nothing is
    taken back."""


class _Untold(PendingReasons):
    """Explains nothing: here no reader asks why pods wait, and explaining takes half of the time."""

    def __init__(self, core: Core) -> None:
        super().__init__(
            core.book, core.explainer, queue=core.queue, gangs=core.gangs, unplaced=core.unplaced, first_seen={}
        )

    def explain_one(self, now: float) -> list[m.Command]:
        del now
        while (uid := self._unplaced.next_unexplained()) is not None:
            self._unplaced.explained.add(uid)
        return []

    def repeat(self, held: Container[str], now: float) -> list[m.Command]:
        del held, now
        return []

    def remind(self, now: float) -> None:
        del now


class Kerf(Scheduler):
    def __init__(self, jobs: tuple[Job, ...], gpus: int, use: Use, config: Config | None = None) -> None:
        self._jobs, self._use = jobs, use
        self._shapes = Pods(Trace("", (), ()))
        self._now = BEGAN_S
        self._version = 1000
        self._pods: dict[int, Pod] = {}
        self._of: dict[str, int] = {}
        """The job of a pod, by uid."""
        self._bound: list[tuple[str, Grant]] = []
        self._moves: list[Order] = []
        self._late: list[m.Input] = []
        """What the node says by itself since the last step."""
        self._lines: dict[tuple[int, int, int, str], list[tuple[str, int]]] = {}
        """Pods of one kind that the preemptor may be asked about, the oldest first, and stale entries of pods that do
        not wait any more."""
        self._inventory = self._node_has(
            tuple(Gpu(uuid=f"gpu-{i}", index=i, model="GPU", memory_mib=GPU_MIB) for i in range(gpus))
        )
        self._index = {gpu.uuid: gpu.index for gpu in self._inventory.gpus}
        self.placement = Core("jobs")
        self.placement.pending_reasons = _Untold(self.placement)
        self.preemptor = Preemptor(config or Config(), lambda: f"plan-{self._next_version()}")
        self._send(m.InventorySeen(self._inventory))
        self._send(
            m.TermTaken(
                term=100,
                records=((98, TermRecord(holder="before")), (99, ReadyRecord(term=98))),
                mark=LogMark(term=98, sequence=99),
            )
        )

    def _node_has(self, gpus: tuple[Gpu, ...]) -> Inventory:
        return Inventory(node=NODE, boot_id="boot", gpus=gpus, simulated=True)

    # --- what happens -----------------------------------------------------------------------------------------

    def step(self, now_s: float, ended: list[int], arrived: list[int]) -> list[Order]:
        self._now = max(self._now, BEGAN_S + now_s)
        self._send(m.BeatSeen((NODE,)))
        facts: list[Fact] = [Gone(object=self._pods.pop(job)) for job in ended]
        facts += [Put(object=self._made(job, 0)) for job in arrived]
        self._send(m.FactsSeen(tuple(facts)))
        for late in self._late:
            self._send(late)
        self._late.clear()
        self._run_bound()
        self._settle()
        moves, self._moves = self._moves, []  # those of a copy that has ended were made before this step
        return moves

    def _settle(self) -> None:
        while self._make_room():
            pass

    def _make_room(self) -> bool:
        """The preemptor is told which pods wait, and gets its turn; of pods of one kind only the oldest is reported,
        for the others would have the same answer. Returns whether anything came of it."""
        before = len(self._moves)
        for line in self._lines.values():
            while line and self._settled(line[0][1]):
                heappop(line)
            if line:
                self._ask(pm.Rejected(self._pods[line[0][1]].metadata.uid))
        self._pass_time(_PATIENT_S)
        self._ask(pm.Tick())
        self._run_bound()
        return len(self._moves) > before

    def _settled(self, job: int) -> bool:
        return job not in self._pods or bool(self._pods[job].spec.node_name)

    def _pass_time(self, seconds: float) -> None:
        self._now += seconds
        self._send(m.BeatSeen((NODE,)))

    # --- the cluster's part -----------------------------------------------------------------------------------

    def _made(self, job: int, evictions: int) -> Pod:
        """The job's pod, as its controller makes it."""
        of = self._jobs[job]
        shape = self._shape(of)
        created = datetime.fromtimestamp(self._now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        meta = msgspec.structs.replace(
            shape.metadata,
            name=f"{of.name}-{evictions}",
            namespace=_NAMESPACE,
            uid=f"{of.name}-{evictions}",
            resource_version=self._next_version(),
            creation_timestamp=created,
            labels={names.LABEL_QUEUE: of.qos} if self._use.queues else {},
            owner_references=(OwnerReference(kind="Job", name=of.name, uid=of.name, controller=True),),
        )
        priority = _PRIORITY if self._use.priorities and of.qos != "BE" else 0
        spec = msgspec.structs.replace(
            shape.spec, priority=priority, preemption_policy="PreemptLowerPriority" if self._use.evicts else "Never"
        )
        pod = self._pods[job] = msgspec.structs.replace(
            shape, metadata=meta, spec=spec, status=PodStatus(phase="Pending")
        )
        self._of[meta.uid] = job
        heappush(self._lines.setdefault((of.gpus, of.milli, priority, of.qos), []), (created, job))
        return pod

    def _shape(self, job: Job) -> Pod:
        return self._shapes.template(TracePod(0, 0, job.gpus, job.milli, "")).pod

    def _run_bound(self) -> None:
        """What was bound since is seen to run."""
        while self._bound:
            bound, self._bound = self._bound, []
            facts = []
            for uid, grant in bound:
                job = self._of[uid]
                pod = self._pods[job]
                meta = msgspec.structs.replace(
                    pod.metadata,
                    resource_version=self._next_version(),
                    annotations=pod.metadata.annotations | {names.ANNOTATION_GRANT: encode_grant(grant)},
                )
                started = datetime.fromtimestamp(self._now, UTC).isoformat()
                spec, status = (
                    msgspec.structs.replace(pod.spec, node_name=NODE),
                    PodStatus(phase="Running", start_time=started),
                )
                self._pods[job] = msgspec.structs.replace(pod, metadata=meta, spec=spec, status=status)
                facts.append(Put(object=self._pods[job]))
                self._moves.append(Start(job, self._shares(grant)))
            self._send(m.FactsSeen(tuple(facts)))

    def _shares(self, grant: Grant) -> tuple[Share, ...]:
        given = [share for container in grant.containers.values() for share in container.gpus]
        return tuple(Share(self._index[share.uuid], share.compute_milli, share.memory_mib) for share in given)

    def _evict(self, uid: str) -> None:
        job = self._of[uid]
        self._moves.append(Evict(job))
        gone = self._pods[job]
        again = self._made(job, int(uid.rsplit("-", 1)[1]) + 1)
        self._send(m.FactsSeen((Gone(object=gone), Put(object=again))))

    def _next_version(self) -> str:
        self._version += 1
        return str(self._version)

    # --- the wires --------------------------------------------------------------------------------------------

    def _send(self, event: m.Input) -> None:
        todo: list[m.Input] = [event]
        while todo:
            said = todo.pop(0)
            match said:  # what placement hears the preemptor hears too, from the same feed and the same store
                case m.FactsSeen():
                    self._ask(pm.FactsSeen(said.facts))
                case m.InventorySeen():
                    self._ask(pm.InventorySeen(said.inventory))
            for command in self.placement.handle(said, self._now):
                todo += self._answers(command)

    def _answers(self, command: m.Command) -> list[m.Input]:
        match command:
            case m.Append():
                return [m.Appended(int(self._next_version()))]
            case m.TakeSnapshot():
                facts = self._cluster()
                self._ask(pm.SnapshotSeen(facts))
                return [m.SnapshotSeen(facts, 0)]
            case m.SendSync():
                return [
                    m.SyncAnswered(
                        NodeSyncAnswer(
                            node=NODE, boot_id="boot", term=command.sync.term, accepted=True, number=command.sync.number
                        )
                    )
                ]
            case m.SendGrant():
                return self._ordered(command.grant)
            case m.SendPatches():
                return self._patched(command.patches)
            case m.SendRelease():
                return [m.ReleaseSeen(NODE, command.release.grant_id)]
            case m.SendBinds():
                self._bound += [(bind.uid, decode_grant(bind.grant)) for bind in command.binds]
            case m.Again():
                return [m.Tick()]
            case m.Later():
                self._now += command.seconds
                return [m.Tick()]
            case m.AnswerPlan():
                self._ask(pm.Answered(command.answer))
            case m.Publish() if isinstance(
                heard := pm.to_input(command.event), pm.GrantOver | pm.Ended
            ):  # rejections by the line
                self._ask(heard)
        return []

    def _ordered(self, grant: NodeGrant) -> list[m.Input]:
        """What the agent answers."""
        return [m.GrantAcknowledged(NODE, grant.grant.grant_id)]

    def _patched(self, patches: tuple[Patch, ...]) -> list[m.Input]:
        """What the API server makes of patches; none matters here."""
        del patches
        return []

    def _ask(self, event: pm.Input) -> None:
        for command in self.preemptor.handle(event, self._now):
            match command:
                case pm.Propose():
                    self._send(m.ReserveAsked(command.plan))
                case pm.Execute():
                    for order in command.evictions:
                        self._evict(order.uid)
                    self._ask(pm.Evicted(command.plan_id, tuple(order.uid for order in command.evictions), ()))
                case pm.CancelPlan():
                    self._send(m.AbandonAsked(command.plan_id, command.reason))

    def _cluster(self) -> tuple[Fact, ...]:
        """One node, whose CPU and memory are never what is short."""
        plenty: Quantities = {"cpu": "100000", "memory": "100Ti", "pods": "100000"}
        meta = Meta(name=NODE, uid="uid-node", resource_version="1", labels={names.LABEL_MANAGED: "true"})
        objects: list[Fact] = [Put(object=Node(metadata=meta, status=NodeStatus(allocatable=plenty)))]
        if self._use.queues:
            queues = [{"name": qos} for qos in sorted({job.qos for job in self._jobs})]
            policy = Meta(name=CONFIG_MAP, namespace=CONFIG_NAMESPACE, uid="uid-policy", resource_version="2")
            objects.append(
                Put(
                    object=ConfigMap(
                        metadata=policy, data={QUEUES_KEY: msgspec.yaml.encode({"queues": queues}).decode()}
                    )
                )
            )
        return tuple(objects)
