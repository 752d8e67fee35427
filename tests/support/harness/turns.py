"""A node whose pods take turns at placement's core: the test says when it answers and when patches are written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

import msgspec

from services.placement import messages as m
from shared.book import host_memory
from shared.contracts.commands import SuspendPod
from shared.contracts.facts import Put
from shared.contracts.node_commands import NodeGrant, NodeSyncAnswer
from shared.contracts.preemption import Action, Beneficiary, Plan, Reserved, Victim
from shared.model import names
from shared.model.gpu import Inventory
from shared.model.grant import Grant, decode_grant
from shared.model.objects import Pod, PodStatus
from shared.model.suspension import Suspension, goes_to_host
from shared.turns.gpu_time import GpuTime, read_gpu_time
from tests.support import build
from tests.support.harness.placement import Placement, only

GPU_MIB = 81_920
EPOCH_S = 1_800_000_000.0
RULES = "turns: {level_bounds_gpu_s: [600, 7200, 86400], min_turn_s: 120, max_wait_s: 21600}"
STRATEGIES = ("exclusive", "advisory", "interposer")


def stamp(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Site:
    """One node of two GPUs, each as large as a pod, with room on its host for `park` pods. Nodes answer when the test
    says so, and patches are written when it says so."""

    def __init__(
        self, *, gpus: int = 2, park: float = 1, memory: str = f"{GPU_MIB}Mi", any_gpu: bool = False, **placement: Any
    ) -> None:
        """`any_gpu`: the node restores memory to other GPUs."""
        self.any_gpu = any_gpu
        self.memory, self.park_mib, self.gpus = memory, round(park * GPU_MIB), gpus
        self.api: dict[str, Pod] = {}
        self.unwritten: list[SuspendPod] = []
        self.unanswered: list[m.SendGrant] = []
        self.on_host: set[str] = set()
        """Grants whose memory is on the host, as the node has it."""
        self.has: dict[str, Suspension | None] = {}
        self.grants: dict[str, Grant] = {}
        """By grant id, as its node was told last."""
        self.cannot_move: dict[str, str] = {}
        self.cannot: dict[str, str] = {}
        """By grant: why the node cannot checkpoint it."""
        self.idle: dict[str, float] = {}
        self.woken: dict[str, float] = {}
        """By grant: since when its pod is idle, and since when it wants the GPU again."""
        self._generation = 1
        self.holds: list[m.SendHold] = []
        self.answers_holds = True
        self.placement = Placement(respond=self._respond, begins=False, **placement)
        self.send(self.placement.beginning)
        self.placement.facts(build.node("n"), build.queues(RULES))
        self.send(m.InventorySeen(self.inventory()))
        self.wait(1)

    def inventory(self) -> Inventory:
        seen = build.inventory("n", gpus=self.gpus, strategies=STRATEGIES, park_mib=self.park_mib)
        return msgspec.structs.replace(
            seen,
            any_gpu=self.any_gpu,
            idle_grants=self.idle,
            woken_grants=self.woken,
            generation=self._generation,
        )

    def park(self, pods: float) -> None:
        """The node says that its host has room for so many pods."""
        self.park_mib = round(pods * GPU_MIB)
        self._generation += 1
        self.send(m.InventorySeen(self.inventory()))

    def say_idle(self, *names_: str, woken: tuple[str, ...] = ()) -> None:
        """The node says that these pods are idle, and that these want the GPU again from now on."""
        self.idle = {self.state(name).grant_id: self.wall for name in names_}
        self.woken = {self.state(name).grant_id: self.wall for name in woken}
        self._generation += 1
        self.send(m.InventorySeen(self.inventory()))

    # --- surroundings -------------------------------------------------------------------------------------------

    def _respond(self, command: m.Command, default: Any) -> list[m.Input]:
        match command:
            case m.SendPatches():
                self.unwritten += [p for p in command.patches if isinstance(p, SuspendPod)]
            case m.SendGrant():
                self.unanswered.append(command)
                return []
            case m.SendHold():
                self.holds.append(command)
                return default(command) if self.answers_holds else []
            case m.SendSync():
                for grant in command.sync.grants:
                    self._execute(grant)
                answer = NodeSyncAnswer(
                    node="n",
                    boot_id="boot-1",
                    term=command.sync.term,
                    accepted=True,
                    number=command.sync.number,
                    suspension={i: s for i, s in self.has.items() if s is not None},
                    on_host=tuple(sorted(self.on_host)),
                    cannot_checkpoint=self.cannot,
                    cannot_move=self.cannot_move,
                )
                return [m.SyncAnswered(answer)]
        answers: list[m.Input] = default(command)
        return answers

    def _execute(self, order: NodeGrant) -> None:
        grant_id, suspension = order.grant.grant_id, order.suspension
        self.has[grant_id] = suspension
        self.grants[grant_id] = order.grant
        self.assert_each_gpu_is_had_once()
        if suspension is not None and suspension.action == "checkpoint":
            self.on_host.add(grant_id)
        elif suspension is None:
            self.on_host.discard(grant_id)
        core = self.placement.core
        used = sum(
            host_memory.needed_mib(core.book.grants[i]).get("n", 0) for i in self.on_host if i in core.book.grants
        )
        assert used <= self.park_mib, "the host has not so much memory"

    def assert_each_gpu_is_had_once(self) -> None:
        """By what the node does, and by the annotations."""
        running = [g for i, g in self.grants.items() if (s := self.has.get(i)) is None or s.action != "checkpoint"]
        annotated = [
            decode_grant(notes[names.ANNOTATION_GRANT])
            for pod in self.api.values()
            if names.ANNOTATION_GRANT in (notes := pod.metadata.annotations) and names.ANNOTATION_SUSPENDED not in notes
        ]
        for grants in (running, annotated):
            taken = Counter[str]()
            for share in (share for g in grants for part in g.containers.values() for share in part.gpus):
                taken[share.uuid] += share.memory_mib
            assert all(mib <= GPU_MIB for mib in taken.values()), taken

    def gpus_of(self, name: str) -> list[str]:
        """Those of its annotated grant."""
        grant = decode_grant(self.api[f"uid-team-{name}"].metadata.annotations[names.ANNOTATION_GRANT])
        return [share.uuid for part in grant.containers.values() for share in part.gpus]

    def free_milli(self) -> list[int]:
        return [room.free_milli for room in self.placement.core.book.nodes["n"].gpus]

    def send(self, event: m.Input) -> list[m.Command]:
        return self.placement.send(event)

    def wait(self, seconds: float) -> list[m.Command]:
        said: list[m.Command] = []
        for _ in range(round(seconds)):
            self.placement.now += 1
            said += self.send(m.BeatSeen(("n",))) + self.send(m.Tick(EPOCH_S + self.placement.now))
        return said

    def write(self, *names_: str) -> None:
        """The API server carries out the orders that were sent, of these pods; of all if none is named."""
        now, self.unwritten = self.unwritten, [p for p in self.unwritten if names_ and p.name not in names_]
        for order in now:
            pod = self.api.get(order.uid)
            if (names_ and order.name not in names_) or pod is None:
                continue
            if pod.metadata.resource_version != order.resource_version:
                continue
            notes = {k: v for k, v in pod.metadata.annotations.items() if k != names.ANNOTATION_SUSPENDED}
            notes |= {names.ANNOTATION_SUSPENDED: order.suspension} if order.suspension else {}
            notes |= {names.ANNOTATION_GPU_TIME: order.gpu_time} if order.gpu_time else {}
            notes |= {names.ANNOTATION_GRANT: order.grant} if order.grant else {}
            self.show(build.newer(pod, annotations=notes))

    def answer(self, *, reason: str = "", late: int = 0) -> None:
        """The node executes and answers its orders, but not the last `late` of them."""
        now = self.unanswered[: len(self.unanswered) - late]
        self.unanswered = self.unanswered[len(now) :]
        for command in now:
            grant = command.grant
            if reason and grant.suspension is not None:
                self.send(m.GrantAcknowledged("n", grant.grant.grant_id, reason=reason, number=grant.number))
                continue
            self._execute(grant)
            whole = not goes_to_host(grant.suspension)
            self.send(
                m.GrantAcknowledged(
                    "n",
                    grant.grant.grant_id,
                    suspension=grant.suspension,
                    number=grant.number,
                    whole=whole,
                    cannot_checkpoint=self.cannot.get(grant.grant.grant_id, ""),
                    cannot_move=self.cannot_move.get(grant.grant.grant_id, ""),
                    amendment=grant.grant.amendment,
                )
            )

    def hold_answered(self, asked: m.SendHold, *, reason: str = "") -> None:
        self.send(
            m.HoldAnswered(asked.plan_id, asked.gang, asked.attempt, asked.hold.node, ok=not reason, reason=reason)
        )

    def settle(self, seconds: float = 1) -> None:
        for _ in range(round(seconds)):
            self.wait(1)
            self.write()
            self.answer()

    # --- pods ---------------------------------------------------------------------------------------------------

    @property
    def wall(self) -> float:
        return EPOCH_S + self.placement.now

    def show(self, pod: Pod) -> None:
        self.api[pod.metadata.uid] = pod
        self.send(m.FactsSeen((Put(object=pod),)))

    def create(self, name: str, *, gang: str = "", size: int = 2, turns: str = "allowed", **rest: Any) -> None:
        notes = {names.ANNOTATION_TURNS: turns, names.ANNOTATION_ISOLATION: "firm"}
        notes |= {names.ANNOTATION_GANG: gang, names.ANNOTATION_GANG_SIZE: str(size)} if gang else {}
        rest.setdefault("compute", 100)
        self.show(build.gpu_pod(name, memory=self.memory, annotations=notes, created=stamp(self.wall), **rest))

    def bind(self, *names_: str) -> None:
        for name in names_:
            uid = f"uid-team-{name}"
            seen = self.placement.bind(self.api[uid])
            self.show(
                msgspec.structs.replace(
                    build.newer(seen), status=PodStatus(phase="Running", start_time=stamp(self.wall))
                )
            )
        self.answer()

    def run(self, name: str, **rest: Any) -> None:
        self.create(name, **rest)
        self.bind(name)

    def end(self, name: str) -> None:
        grant = self.state(name).grant_id
        self.placement.gone(self.api.pop(f"uid-team-{name}"))
        self.has.pop(grant, None)
        self.grants.pop(grant, None)
        self.on_host.discard(grant)
        self.send(m.ReleaseSeen("n", grant))

    def state(self, name: str) -> Any:
        return self.placement.core.book.pods[f"uid-team-{name}"]

    def record(self, name: str) -> GpuTime:
        found = read_gpu_time(self.api[f"uid-team-{name}"].metadata.annotations)
        assert found is not None
        return found

    def runs(self) -> list[str]:
        """The pods that are bound and not suspended, by their annotations and by the node."""
        return sorted(
            pod.metadata.name
            for pod in self.api.values()
            if pod.spec.node_name
            and names.ANNOTATION_SUSPENDED not in pod.metadata.annotations
            and self.has.get(self.state(pod.metadata.name).grant_id) is None
        )

    # --- plans --------------------------------------------------------------------------------------------------

    def plan(
        self,
        victims: tuple[str, ...],
        gains: tuple[str, ...],
        *,
        action: Action = "checkpoint",
        plan_id: str = "turn",
        onto: Mapping[str, Mapping[str, str]] = MappingProxyType({}),
    ) -> Plan:
        """`onto`: by name of resuming pods, the new GPU by the one that they had."""
        return Plan(
            plan_id=plan_id,
            turn=True,
            deadline_s=60,
            beneficiaries=tuple(
                Beneficiary(
                    uid=f"uid-team-{name}",
                    namespace="team",
                    name=name,
                    node="n",
                    resumes=self.state(name).seen_bound,
                    gpus=dict(onto.get(name, {})),
                )
                for name in gains
            ),
            victims=tuple(
                Victim(
                    uid=f"uid-team-{name}",
                    namespace="team",
                    name=name,
                    grant_id=self.state(name).grant_id,
                    action=action,
                )
                for name in victims
            ),
        )

    def propose(self, plan: Plan) -> Reserved:
        return only(self.send(m.ReserveAsked(plan)), m.AnswerPlan)[-1].answer

    def free_host(self) -> int:
        return host_memory.free_mib(self.placement.core.book.nodes["n"]) // GPU_MIB

    def new_leader(self, *, touched: bool = True) -> None:
        """Another leader with this one's log. What was on its way to the API server is still written."""
        self.placement.succeed(build.node("n"), *self.api.values())
        self.unanswered.clear()
        self.send(self.placement.next_term())
        self.send(m.InventorySeen(self.inventory()))
        if touched:
            self.touch()

    def touch(self) -> None:
        for uid, pod in list(self.api.items()):  # suspended pods are touched
            if names.ANNOTATION_SUSPENDED in pod.metadata.annotations:
                self.show(build.newer(self.api[uid]))


def long_and_new(**site: Any) -> Site:
    """A pod has had one GPU for an hour, and another one waits for it."""
    found = Site(gpus=1, **site)
    found.run("long")
    found.wait(3_600)
    found.create("new")
    return found
