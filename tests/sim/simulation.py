"""The simulated world of one seed, its faults, and the properties that must hold after every step."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from services.node_agent.messages import Input
from services.placement.core import Core
from services.placement.scheduling.gangs.placing import by_size, place_gang
from shared.book.gangs import GangState
from shared.contracts.commands import AmendGrant
from shared.contracts.facts import Fact, Put
from shared.model import names
from shared.model.grant import ContainerGrant, Grant, decode_grant, serving_node
from shared.model.objects import Pod
from shared.model.suspension import annotated_suspension, decode_suspension, left_of
from shared.scheduling.transaction import Transaction
from tests.sim.checker import GrantChecker
from tests.sim.clock import Clock, Network
from tests.sim.disasters import Disasters, RestorableCluster
from tests.sim.leaders import Leader
from tests.sim.mig import Mig
from tests.sim.migrations import JOB, Migrations
from tests.sim.nats import SimNats, Violation
from tests.sim.nodes import SimNode, raise_first
from tests.sim.rebuild import compare_with_rebuilt
from tests.sim.turns import RESTING_S, TURNING_S, Turns
from tests.sim.watchers import Watcher

GPU_MIB, GPU_MILLI = 81920, 1000
HAS_AGENT = {names.LABEL_ENROLLED: "true", names.LABEL_GPU_COUNT: "1"}
"""Its labels say so since before anything went wrong."""
FAULTY_S, CALM_S = 60.0, 400.0
REST_STEPS = 64
"""After so many steps it is asked whether the world is at rest."""
ASKS = (
    {names.RESOURCE_GPU: "1"},
    {names.RESOURCE_GPU: "2"},
    {names.RESOURCE_GPU_MEMORY: "40Gi"},
    {names.RESOURCE_GPU_COMPUTE: "50"},
    {names.RESOURCE_GPU_MEMORY: "20Gi", names.RESOURCE_GPU_COMPUTE: "30"},
    {},
)
FAULTS = (
    "delete_pod",
    "delete_pod",
    "force_delete",
    "edit_pod",
    "edit_pod",
    "crash_leader",
    "freeze_leader",
    "supersede_leader",
    "crash_watcher",
    "crash_agent",
    "reboot",
    "cut",
    "wipe",
    "remove_node",
    "lose_part_of_the_log",
    "stall_agent",
    "stall_agent",
    "lose_bindings",
    "forget_binding",
    "go_rogue",
    "repair_touch",
)
"""Methods of Simulation, without their underscore; twice named is twice as likely."""


Fork = tuple[float, int]
"""From this time on everything is drawn from another generator, that of the number."""


class Simulation:
    def __init__(self, seed: int, forks: Iterable[Fork] = ()) -> None:
        self.seed = seed
        self._forks = list(forks)
        self.observe: Callable[[Simulation], None] | None = None
        """Called after each step that has changed something."""
        self.last_fault = ""
        self.rng = random.Random(seed)
        # Each world has a part of the kinds, often or seldom. If all of them happened all the time, no state would last
        # long enough for failures that take a while.
        self._faults = [kind for kind in FAULTS if self.rng.random() < 0.5] or list(FAULTS)
        self._pause_s = self.rng.choice((3.0, 6.0, 12.0))
        self._untouchable = self.rng.choice((0.0, 0.05, 0.3))
        self.turns = Turns(self, seed)
        # Where all take turns the bounds are for what runs on.
        self.migrations = Migrations(self, seed, possible=self.turns.drawn and not self.turns.pure)
        self.disasters = Disasters(self, seed)
        # Of its own, so that the other draws stay what they were.
        self.remote_rng = random.Random(f"{seed} remote")
        self.remote = self.remote_rng.random() < 0.4 and not self.turns.drawn
        """Whether nodes serve their GPUs to each other, and some pods agree to that. Such pods take no turns."""
        self.remote_bound: set[str] = set()
        """Grants of pods that were bound with a GPU of another node."""
        self.revived: set[str] = set()
        """Grants of bound pods that came back with a backup of etcd, as they were then; and those of Bindings that were
        under way and found their pod at its old version again."""
        self.restored_at = 0
        """The last resourceVersion before which an object may have come back."""
        self.lost: set[str] = set()
        """Grants whose server ended with its node, and nodes that were deleted: pods on such GPUs have to be replaced.
        """
        self._voided: set[str] = set()
        """Grants that were found void. An agent that has lost its checkpoint does not know that they are."""
        self.reserve_after_s = self._drawn_patience(seed)
        """How long the head of the queue waits before capacity is reserved for it; 0: none ever is."""
        self.bound_at: dict[str, float] = {}
        """By uid, when the Binding succeeded; where etcd was restored since, the first one: the pod's status keeps the
        start that its kubelet reports."""
        self.clock = Clock(self.rng)
        self.network = Network(self.clock)
        self.api = RestorableCluster(uid_prefix=f"{seed & 0xFFFFFFFF:08x}")
        self.history: list[Fact] = []
        self.checker = GrantChecker((GPU_MIB, GPU_MILLI))
        self.gangs: dict[str, dict[str, int]] = {}
        """How many members of each must be decided together: of each subgroup, or "" for a gang without them."""
        self.nats = SimNats(self.clock, self.gangs)
        self.untouchable: set[str] = set()
        """Uids of pods that no patch changes."""
        self.ever_excluded: set[str] = set()
        """Pods that some session has excluded: P5 promises them nothing while a Binding of the past may hit them."""
        self._checked: tuple[int, ...] = ()
        self.hint: tuple[str, float] = ("", 0.0)
        self.bound = self.reserved = 0
        self._changed_at = self.clock.now
        self.pods = 0
        self.leaders: list[Leader] = []
        # Where all pods take turns in one circle none has an instance: what runs there is not suspended.
        self.mig = Mig(seed, possible=not self.turns.pure)
        self.nodes: dict[str, SimNode] = {}
        drawn = self.rng.randint(1, 3)
        for i in range(3 if self.migrations.drawn else drawn):
            self._add_node(f"n{i}")
        self.leaders = [Leader(self, i) for i in range(2)]
        self.watchers = [Watcher(self, i) for i in range(2)]
        self.turns.begin()
        self.migrations.begin()
        self.disasters.begin()
        for _ in range(self.rng.randint(4, 20) + self.migrations.more_pods):
            self.clock.after(self.rng.uniform(0, FAULTY_S * 0.8), self._create_pod)
        for number in range(self.rng.randint(0, 2)):
            self._create_gang(f"g{number}", self.rng.uniform(0, FAULTY_S * 0.6))
        self.clock.after(1.0, self._fault)
        self.resizes = random.Random(f"{seed} resizes")  # of its own, so that the other draws stay what they were
        self.resized = 0
        self._late: set[str] = set()
        """Pods with an amendment that is on its way for long: their users wait for it."""
        self.resizing = self.resizes.random() < 0.4
        """Whether users resize running pods."""
        if self.resizing:
            self.clock.after(5.0, self._resize)

        for at_s, number in self._forks:
            self.clock.after(at_s - self.clock.now, functools.partial(self._fork, number))

    def _fork(self, number: int) -> None:
        """The past stays as it was, and another future is drawn."""
        own = (
            self.rng,
            self.turns.rng,
            self.disasters.rng,
            self.disasters.repairs,
            self.resizes,
            self.remote_rng,
            self.mig.rng,
            self.migrations.rng,
        )
        for which, rng in enumerate(own):
            rng.seed(f"{self.seed} fork {number} {which}")

    @property
    def faulty_until(self) -> float:
        return 1_000.0 + FAULTY_S

    def _drawn_patience(self, seed: int) -> float:
        rng = random.Random(f"{seed} reservations")  # of its own, so that the other draws stay what they were
        return rng.choice((1.0, 5.0, 15.0)) if rng.random() < 0.4 else 0.0

    def run(self) -> None:
        """Faults for a while, then calm; raises Violation."""
        while self.clock.next_at < self.faulty_until:
            self._step()
        self._calm()
        if self.turns.drawn:
            self._until_rest(TURNING_S, rests=False)
            self.turns.rest()
            self._until_rest(RESTING_S)
            self._finish()
            self.turns.drain()
        self._until_rest(CALM_S)
        self._finish()

    def _until_rest(self, seconds: float, *, rests: bool = True) -> None:
        end = self.clock.now + seconds
        while self.clock.next_at < end:
            if not self.clock.skip_idle(end, REST_STEPS):
                self._step()
            if rests and self.clock.steps % REST_STEPS == 0 and self._at_rest():
                break

    def _step(self) -> None:
        self.clock.step()
        self._check()

    def record(self) -> None:
        """Changes at the API server become history, which watchers see with a delay."""
        happened = self.api.take()
        if happened:
            self.history += happened
            self._changed_at = self.clock.now
            self.migrations.see(happened)
        for fact in happened:
            if isinstance(fact.object, Pod):
                meta = fact.object.metadata
                self.turns.stored(meta.uid, meta.annotations)
                raise_first(self.checker.stored(meta.uid, fact.object.spec.node_name, meta.annotations))

    def restored(self, facts: list[Fact]) -> None:
        """The API server's objects are those of a backup. `facts`: those that differ from what was there before.

        Pods come back that had ended or were deleted since, and their nodes have given their grants back for good.
        """
        for fact in facts:
            if isinstance(fact.object, Pod) and isinstance(fact, Put) and fact.object.spec.node_name:
                text = fact.object.metadata.annotations.get(names.ANNOTATION_GRANT)
                self.revived |= {decode(text).grant_id} if text else set()
        self.restored_at = self.api.version
        self._changed_at = self.clock.now
        for name in self.nodes:
            # One that the backup does not have registers again.
            self.clock.after(self.disasters.rng.uniform(0.5, 5.0), functools.partial(self._add_node, name))

    # --- users and faults -------------------------------------------------------------------------------------

    def _add_node(self, name: str) -> None:
        capacity = {"cpu": "16", "memory": "64Gi", "pods": "20"}
        self.api.create(
            "Node",
            {
                "metadata": {"name": name, "labels": {"kerf.sim/side": name[-1], **HAS_AGENT}},
                "status": {"allocatable": capacity, "capacity": capacity},
            },
            self.clock.now,
        )
        self.record()
        if name not in self.nodes:
            self.nodes[name] = SimNode(self, name, self.rng.randint(1, 3))

    def _create_gang(self, name: str, at_s: float) -> None:
        """Its pods come within a few seconds; there may be one more than it needs."""
        size = self.rng.randint(2, 4)
        minimum = self.rng.choice((size, size, size - 1))
        self.gangs[name] = {"": minimum}
        notes = {names.ANNOTATION_GANG: name}
        parts = random.Random(f"{self.seed} {name}")  # of its own, so that the other draws stay what they were
        subgroups = parts.random() < 0.4
        if subgroups:
            self.gangs[name] = {"head": 1, "workers": minimum - 1}
            level = parts.choice(("", "", "@kerf.sim/side"))
            notes[names.ANNOTATION_GANG_SUBGROUPS] = f"head=1,workers={minimum - 1}{level}"
        else:
            notes |= {names.ANNOTATION_GANG_SIZE: str(size), names.ANNOTATION_GANG_MIN: str(minimum)}
        if self.rng.random() < 0.3:
            notes[names.ANNOTATION_GANG_TOPOLOGY] = self.rng.choice(
                ("required=kerf.sim/side", "preferred=kerf.sim/side")
            )
        for number in range(size):
            own = {names.ANNOTATION_GANG_SUBGROUP: "workers" if number else "head"} if subgroups else {}
            self.clock.after(at_s + self.rng.uniform(0, 3), functools.partial(self._create_pod, notes | own))

    def _create_pod(self, notes: dict[str, str] | None = None) -> None:
        self.pods += 1
        ask, isolation = self.mig.ask(self.rng.choice(ASKS))
        container = {"name": "c", "resources": {"limits": ask, "requests": {"cpu": "1", **ask}}}
        side: dict[str, str] = {}
        local = isolation or ask.get(names.RESOURCE_GPU) == "2" or any(key.startswith(names.PREFIX_MIG) for key in ask)
        if self.remote and not notes and ask and not local and self.remote_rng.random() < 0.6:
            notes = {names.ANNOTATION_REMOTE: "allowed"}
            side = {"kerf.sim/side": self.remote_rng.choice(list(self.nodes))[-1]}  # else a local GPU would be free
        owners = [JOB] if self.rng.random() < 0.3 else []
        pod = {
            "metadata": {
                "namespace": "default",
                "annotations": {**(notes or {}), **isolation},
                "ownerReferences": owners,
            },
            "spec": {
                "schedulerName": names.SCHEDULER_NAME,
                "priority": self.rng.choice((0, 0, 10)),
                "nodeSelector": side,
                "containers": [container],
            },
        }
        gang = (notes or {}).get(names.ANNOTATION_GANG, "")
        of = f" in gang {gang}" if gang else f" on side {side}" if side else ""
        self.clock.tell(f"a user creates p{self.pods}{of} asking for {ask}")
        self.submit(self.migrations.pod(self.turns.pod(pod, gang)), f"p{self.pods}")

    def submit(self, written: dict[str, Any], name: str = "") -> str:
        """Creates a pod; returns its uid. Without a name it gets the next one, as of a controller."""
        if not name:
            self.pods += 1
            name = f"p{self.pods}"
        _, made = self.api.create("Pod", {**written, "metadata": {**written["metadata"], "name": name}}, self.clock.now)
        uid, notes = made["metadata"]["uid"], written["metadata"]["annotations"]
        self.turns.created(uid)
        self.migrations.created(uid, written)
        if gang := notes.get(names.ANNOTATION_GANG):
            self.nats.gang_of[uid] = (gang, notes.get(names.ANNOTATION_GANG_SUBGROUP, ""))
        if self.rng.random() < self._untouchable:
            self.clock.tell(f"no watcher can patch {name}")
            self.untouchable.add(uid)
        self.record()
        return uid

    def _resize(self) -> None:
        """Users want other amounts for a pod's slice, often before they have the last ones."""
        if self.network.calm:
            return
        sliced = [pod for pod in self.api.all("Pod") if (grant := bound_grant(pod)) is not None and is_part(grant)]
        sliced = [pod for pod in sliced if pod["metadata"]["name"] not in self._late]
        if sliced:
            pod = self.resizes.choice(sliced)
            wanted = f"memory={self.resizes.choice((4, 20, 40, 60, 80))}Gi"
            if "gpu-compute" in str(pod["spec"]):
                wanted += f",compute={self.resizes.choice((5, 30, 50, 90))}"
            self.clock.tell(f"a user wants {wanted} for {pod['metadata']['name']}")
            body = {"metadata": {"annotations": {names.ANNOTATION_RESIZE: wanted}}}
            self.api.patch("Pod", "default", pod["metadata"]["name"], body)
            self.record()
        self.clock.after(self.resizes.choice((0.1, 1.0, 4.0)), self._resize)

    def delays(self, patch: AmendGrant, watcher: Watcher) -> bool:
        """Some amendments are on their way for long. The leader may die meanwhile, also with its log."""
        if self.network.calm or self.resizes.random() > 0.1:
            return False
        self.clock.tell(f"the amendment of {patch.name} at {patch.resource_version} is late")
        self._late.add(patch.name)
        self.clock.after(self.resizes.uniform(4.0, 12.0), lambda: watcher.amend(patch))
        for _ in range(3):
            self.clock.after(self.resizes.uniform(0.5, 3.0), self._create_pod)
        if self.resizes.random() < 0.5:
            return True
        if self.resizes.random() < 0.5:
            self.nats.wipe()
        for leader in self.leaders:
            leader.crash()
            self.clock.after(0.1, leader.restart)
        return True

    def _some_pod(self) -> dict | None:  # type: ignore[type-arg]
        pods = list(self.api.all("Pod"))
        return self.rng.choice(pods) if pods else None

    def _fault(self) -> None:
        if self.network.calm:
            return
        self.last_fault = self.rng.choice(self._faults)
        getattr(self, f"_{self.last_fault}")()
        self.record()
        self.clock.after(self.rng.uniform(0.2, self._pause_s), self._fault)

    def _delete_pod(self) -> None:
        pod = self._some_pod()
        if pod:
            self.clock.tell(f"a user deletes {pod['metadata']['name']}")
            self.api.delete("Pod", "default", pod["metadata"]["name"], {}, self.clock.now)

    def _force_delete(self) -> None:
        pod = self._some_pod()
        if pod:
            self.clock.tell(f"a user force-deletes {pod['metadata']['name']}")
            self.api.delete("Pod", "default", pod["metadata"]["name"], {"gracePeriodSeconds": 0}, self.clock.now)

    def _edit_pod(self) -> None:
        """More often of a pending pod: its decision, if there is one, is void then."""
        if self.network.calm:
            return
        waiting = [pod for pod in self.api.all("Pod") if not pod["spec"].get("nodeName")]
        pod = self.rng.choice(waiting) if waiting and self.rng.random() < 0.7 else self._some_pod()
        if pod:
            self.clock.tell(f"a user edits {pod['metadata']['name']}")
            self.api.patch(
                "Pod", "default", pod["metadata"]["name"], {"metadata": {"labels": {"edited": str(self.clock.steps)}}}
            )
            self.record()

    def _crash_leader(self) -> None:
        if self.network.calm:
            return
        leader = self.rng.choice(self.leaders)
        leader.crash()
        self.clock.after(self.rng.uniform(0.1, 10.0), leader.restart)

    def _freeze_leader(self) -> None:
        leader = self.rng.choice(self.leaders)
        leader.freeze()
        self.clock.after(self.rng.uniform(0.1, 20.0), leader.thaw)

    def _supersede_leader(self) -> None:
        """The leader is frozen until another one leads, and wakes beside it."""
        for leader in self.leaders:
            if leader.core is not None and leader.core.phase == "leading":
                leader.freeze()
                self.clock.after(self.rng.uniform(6.0, 12.0), leader.thaw)

    def _crash_watcher(self) -> None:
        watcher = self.rng.choice(self.watchers)
        if watcher.alive:
            watcher.crash()
            self.clock.after(self.rng.uniform(0.1, 5.0), lambda: None if watcher.alive else watcher.restart())

    def _crash_agent(self) -> None:
        node = self.rng.choice(list(self.nodes.values()))
        node.crash_agent()
        self.clock.after(self.rng.uniform(0.1, 10.0), node.restart_agent)

    def _reboot(self) -> None:
        if self.rng.random() < 0.3:
            self.rng.choice(list(self.nodes.values())).reboot()

    def _cut(self) -> None:
        names_ = [x.name for x in (*self.leaders, *self.watchers, *self.nodes.values())]
        part = self.rng.choice(names_)
        self.clock.tell(f"{part} is cut off")
        self.network.cut.add(part)
        self.clock.after(self.rng.uniform(0.5, 10.0), lambda: self._reconnect(part))

    def _reconnect(self, part: str) -> None:
        if part in self.network.cut:
            self.clock.tell(f"{part} is reached again")
            self.network.cut.discard(part)

    def _wipe(self) -> None:
        if self.rng.random() < 0.3:
            self.nats.wipe()

    def _lose_part_of_the_log(self) -> None:
        """A restart alone, one that loses the log's tail, or a restored backup of the log."""
        count = self.rng.randint(1, 8)
        kinds: list[Callable[[], None]] = [
            self.nats.restart,
            lambda: self.nats.lose_tail(count),
            lambda: self.nats.restore(count),
        ]
        if self.rng.random() < 0.6:
            self.rng.choice(kinds)()

    def _lose_bindings(self) -> None:
        """Decisions are logged and their Bindings lost.

        The leader dies, its successor takes them over and sends them to the nodes; and then users edit the pending
        pods, which makes the decisions void, and nodes are slow to learn what is decided instead.
        """
        if self.network.lost_orders:
            return
        self.clock.tell("no Binding is sent any more")
        self.network.lost_orders = True
        self.clock.after(
            self.rng.uniform(1.0, 3.0), lambda: [leader.crash() for leader in self.leaders if leader.core is not None]
        )
        self.clock.after(3.5, lambda: [leader.restart() for leader in self.leaders])
        self.clock.after(4.0, lambda: self._void_holds(self.clock.now + 10.0))

    def _forget_binding(self) -> None:
        """A Binding is on its way when the log is lost, and its pod cannot be touched. The Binding succeeds late, and
        then the log is lost again."""
        core = self.leading()
        held = [hold for hold in core.holds.values() if hold.sequence] if core is not None else []
        if not held:
            return
        hold = self.rng.choice(held)
        self.clock.tell(f"the Binding of {hold.decision.name} is forgotten with the log, and the pod cannot be touched")
        bind, leader = hold.bind(), self.leaders[0]
        self.untouchable.add(bind.uid)
        self._forget()
        late_s = self.rng.uniform(5.0, 15.0)
        self.clock.after(late_s, lambda: self.watchers[0].post(bind, leader))
        self.clock.after(late_s + self.rng.uniform(0.0, 1.0), self._forget)

    def _forget(self) -> None:
        if not self.network.calm:
            self.nats.wipe()
            for leader in self.leaders:
                leader.crash()
                self.clock.after(0.1, leader.restart)

    def _void_holds(self, until: float) -> None:
        core = self.leading()
        told = core is not None and core.nodes.synced_count == len(self.nodes)
        if self.network.calm:
            return
        if not told and self.clock.now < until:
            self.clock.after(0.5, lambda: self._void_holds(until))
            return
        self.network.lost_orders = False
        for hold in [] if core is None else list(core.holds.values()):
            if self.rng.random() < 0.8:
                self.clock.tell(f"a user edits {hold.decision.name}")
                self.api.patch(
                    "Pod", "default", hold.decision.name, {"metadata": {"labels": {"edited": str(self.clock.steps)}}}
                )
                self.nodes[hold.decision.node].stall(self.rng.uniform(1.0, 6.0))
        self.record()

    def _stall_agent(self) -> None:
        if not self.network.calm:
            self.rng.choice(list(self.nodes.values())).stall(self.rng.uniform(0.5, 12.0))

    def _go_rogue(self) -> None:
        node = self.rng.choice(list(self.nodes.values()))
        node.rogue = self.rng.random() < 0.5
        node.lie()

    def _repair_touch(self) -> None:
        if self.untouchable:
            uid = self.rng.choice(sorted(self.untouchable))
            self.clock.tell(f"pod {uid} can be patched again")
            self.untouchable.discard(uid)

    def _remove_node(self) -> None:
        if self.rng.random() < 0.4:
            name = self.rng.choice(list(self.nodes))
            self.clock.tell(f"{name} is deleted from Kubernetes")
            self.lost.add(name)
            self.api.delete("Node", "", name, {}, self.clock.now)
            self.clock.after(self.rng.uniform(1.0, 15.0), lambda: self._add_node(name))

    def _calm(self) -> None:
        self.clock.tell("--- calm ---")
        self.network.calm = True
        self.network.cut.clear()
        self.network.lost_orders = False
        for name in self.nodes:
            self._add_node(name)
        for leader in self.leaders:
            leader.thaw()
            leader.restart()
        for watcher in self.watchers:
            if not watcher.alive:
                watcher.restart()
        for node in self.nodes.values():
            node.restart_agent()
            node.rogue = False
        self.turns.calm()
        self.disasters.calm()

    def to_node(self, leader: Leader, name: str, order: Input) -> None:
        """NATS keeps the order of each subscription; the agent has one for each kind of order."""
        node = self.nodes[name]
        self.network.send(
            leader.name, name, lambda: node.order(order, leader), ordered=f"{leader.name}>{name}>{type(order).__name__}"
        )

    # --- properties -------------------------------------------------------------------------------------------

    def _check(self) -> None:
        """P1 and P4, from the API server's objects and what really runs, without reading any book. Nothing is checked
        twice."""
        state = (self.api.version, *(node.changes for node in self.nodes.values()))
        if state == self._checked:
            return
        self._checked = state
        if self.observe is not None:
            self.observe(self)
        used: dict[tuple[str, str], list[int]] = {}
        counted: dict[str, Grant] = {}
        for pod in self.api.all("Pod"):
            grant = bound_grant(pod)
            if grant is None or pod["status"].get("phase") in ("Succeeded", "Failed"):
                continue
            if serving_node(grant) not in ("", pod["spec"]["nodeName"]):
                self.remote_bound.add(grant.grant_id)
            if self._is_void(grant):
                excused = self.is_lost(grant, pod) or pod["metadata"]["uid"] in self.ever_excluded
                if not excused and not pod["metadata"].get("deletionTimestamp"):
                    raise Violation(
                        f"P5: {pod['metadata']['name']} lives and is bound with {grant.grant_id}, which its "
                        "node will never hand over"
                    )
            elif grant.grant_id not in self.revived:  # of those only what runs is promised to fit (0261)
                counted[grant.grant_id] = grant
                for name, container in grant.containers.items():
                    _count(self._taken(pod, name, container, grant), used)
        for node in self.nodes.values():
            leases = {(lease.uid, lease.container) for lease in node.agent.store.leases}
            for key, (grant_id, share) in node.running.items():
                if key not in leases and node.alive:
                    raise Violation(f"P4: {key} runs on {node.name} without a lease")
                if grant_id not in counted:
                    _count(node.slices.taken(key, share), used)
                elif exceeds_share(share, counted[grant_id].containers[key[1]]):
                    raise Violation(f"P7: {key} has {share} on {node.name}, more than its grant")
        self.mig.check(counted.values(), self.nodes.values())
        for (name, uuid), (mib, milli) in used.items():
            if mib > GPU_MIB or milli > GPU_MILLI:
                raise Violation(f"P1: {uuid} of {name} is booked with {mib} MiB and {milli} milli")
        for node in self.nodes.values() if self.turns.drawn else ():
            node.slices.check_host()

    def _taken(self, pod: dict[str, Any], name: str, container: ContainerGrant, grant: Grant) -> ContainerGrant:
        """What a container of a bound pod takes: what it really has while it runs, else what it will start with."""
        node = self.nodes[pod["spec"]["nodeName"]]
        key = (pod["metadata"]["uid"], name)
        if not self.turns.drawn or serving_node(grant):
            return container
        if key in node.running:
            return node.slices.taken(key, container)
        known = node.agent.store.get(grant.grant_id)
        if known is None:  # such an agent has lost its checkpoint: it will be told the grant as it is annotated
            text = annotated_suspension(pod["metadata"]["annotations"])
            suspension = decode_suspension(text) if text else None
        else:
            suspension = known.grant.suspension
        return container if suspension is None else left_of(grant, suspension).containers[name]

    def _is_void(self, grant: Grant) -> bool:
        """No container will ever start by it, and none runs by it."""
        nodes = [
            self.nodes[name]
            for name in {share.node for container in grant.containers.values() for share in container.gpus}
        ]
        known = any(node.agent.store.get(grant.grant_id) is not None or node.runs(grant.grant_id) for node in nodes)
        if not known and all(node.agent.syncs.is_void(grant) for node in nodes):
            self._voided.add(grant.grant_id)
        return not known and grant.grant_id in self._voided

    def is_lost(self, grant: Grant, pod: dict[str, Any]) -> bool:
        """Whether it came back with a backup of etcd, its GPU was replaced, or its GPU is one of another node, and one
        of the two nodes went away with it."""
        serving = serving_node(grant)
        gone = bool(self.lost & {grant.grant_id, serving, pod["spec"]["nodeName"]})
        return grant.grant_id in self.revived or self._gpu_is_gone(grant) or (bool(serving) and gone)

    def delete_void_pods(self, node: str) -> None:
        """An administrator deletes what stays bound there though its grant is void: an agent without a checkpoint would
        take it for granted again (0287)."""
        for pod in list(self.api.all("Pod")):
            grant = bound_grant(pod)
            gpus = [] if grant is None else [gpu for part in grant.containers.values() for gpu in part.gpus]
            if grant is not None and grant.grant_id in self._voided and node in {gpu.node for gpu in gpus}:
                name = pod["metadata"]["name"]
                self.clock.tell(f"{name} is deleted: its grant is void")
                self.api.delete("Pod", "default", name, {"gracePeriodSeconds": 0}, self.clock.now)

    def _gpu_is_gone(self, grant: Grant) -> bool:
        return any(
            share.uuid not in self.nodes[share.node].agent.gpus.by_uuid
            for container in grant.containers.values()
            for share in container.gpus
        )

    def leading(self) -> Core | None:
        for leader in self.leaders:
            if leader.core is not None and leader.core.phase == "leading" and leader.term == self.nats.newest_term:
                return leader.core
        return None

    def _at_rest(self) -> bool:
        core = self.leading()
        settled = self.clock.now - max(self._changed_at, 1_000.0 + FAULTY_S + 27.0) > 3.0
        if core is None or core.holds or not settled:
            return False
        if core.batcher.in_flight is not None or core.batcher.reservations:
            return False  # what it knows is not all in the log yet
        if core.nodes.synced_count < len(self.nodes):
            return False
        leaving = any(g.phase == "leaving" for g in core.book.grants.values())
        if next(self._resizes(core), "") or not self.turns.at_rest(core) or any(self.unreplaced()):
            return False
        return not leaving and all(group.unschedulable for group in core.queue.groups.values())

    def unreplaced(self) -> Iterator[str]:
        """Pods that are bound to a GPU which is gone, and whose nodes have yet to give their grants back."""
        for pod in self.api.all("Pod") if self.disasters.repaired else ():
            ends = pod["metadata"].get("deletionTimestamp") or pod["status"].get("phase") in ("Succeeded", "Failed")
            grant = None if ends else bound_grant(pod)
            if grant is not None and self._gpu_is_gone(grant) and not self._is_void(grant):
                yield pod["metadata"]["name"]

    def _finish(self) -> None:
        core = self.leading()
        if core is None:
            raise Violation("P5: no leader although all is calm")
        if core.holds:
            raise Violation(f"P5: holds without an end: {sorted(h.decision.name for h in core.holds.values())}")
        waiting = [s for s in core.book.pods.values() if s.wants_place and s.uid in core.queue]
        for state in waiting:
            with core.backfill.shown_to(state.uid):
                if state.gang is None and core.engine.decide(state) is not None:
                    raise Violation(f"P5: {state.key} waits although it fits")
                if state.gang is None and core.remote_places.decide(state) is not None:
                    raise Violation(f"P5: {state.key} waits although it fits with a GPU of another node")
        for gang in core.gangs.by_key.values():
            with core.backfill.shown_to(next(iter(gang.waiting), "")):
                self._check_gang(core, gang)
        for kept in core.backfill.kept.values():
            if not self.reserve_after_s or any(uid not in core.queue for uid in kept.places):
                raise Violation(f"P5: capacity is reserved for {kept.name}, which does not wait for any")
            self.reserved += 1
        if self.turns.drawn and (unfinished := self.turns.unfinished(core)):
            raise Violation(f"T5: {unfinished}")
        if endless := next(self._resizes(core), ""):
            raise Violation(f"P5: a resize never ends: {endless}")
        for pod in self.api.all("Pod"):
            if not pod["metadata"].get("deletionTimestamp"):
                self._check_pod(core, pod)
        compare_with_rebuilt(self, core)
        raise_first(self.checker.linearize())

    def _check_pod(self, core: Core, pod: dict[str, Any]) -> None:
        """It is pending, or is bound and runs by the grant with which it was bound."""
        meta, grant, node = pod["metadata"], bound_grant(pod), pod["spec"].get("nodeName")
        excluded = meta["uid"] in self.ever_excluded
        if not node and meta["uid"] not in core.queue and not (excluded and meta["uid"] in core.recovery.excluded):
            raise Violation(f"lost: no leader places {meta['name']}")
        if grant is None or pod["status"].get("phase") in ("Succeeded", "Failed"):
            return
        self._check_resize(core, pod, grant)
        for container in grant.containers:
            for at in {node, serving_node(grant) or node}:
                runs = self.nodes[at].running.get((meta["uid"], container))
                # A bare pod stays, with an Event, where its grant was given back by the node of its GPU.
                replaced = self.is_lost(grant, pod) and not meta.get("ownerReferences")
                # A suspended pod whose containers do not run yet starts when it has resumed.
                waits = self.turns.drawn and bool(annotated_suspension(meta["annotations"]))
                if runs is None and not waits and not ((excluded or replaced) and self._is_void(grant)):
                    raise Violation(
                        f"lost: {meta['name']}/{container} is bound to {node} with {grant.grant_id} and does not run "
                        f"on {at}"
                    )
                exact = runs is None or serving_node(grant) or runs[1].gpus == grant.containers[container].gpus
                # One that was suspended in the middle of a resize goes on with it when it has resumed.
                if not exact and not waits and self._may_resize(pod):
                    raise Violation(f"P7: {meta['name']}/{container} has {runs and runs[1]}, and its grant {grant}")
                # A pod that came back with an earlier grant than the one that its node has started since (0261).
                came_back = grant.grant_id in self.revived and self._is_void(grant)
                if runs is not None and runs[0] != grant.grant_id and not came_back:
                    raise Violation(
                        f"P4: {meta['name']}/{container} runs by {runs[0]}, and its pod was bound with {grant.grant_id}"
                    )

    def _may_resize(self, pod: dict[str, Any]) -> bool:
        return pod["metadata"]["uid"] not in self.untouchable | self.ever_excluded

    def _resizes(self, core: Core) -> Iterator[str]:
        """Pods with a resize that is not over, and waits for no capacity and no resumption."""
        for pod in self.api.all("Pod"):
            notes = pod["metadata"].get("annotations") or {}
            asked = names.ANNOTATION_RESIZE in notes and not annotated_suspension(notes) and self._may_resize(pod)
            if (grant := bound_grant(pod)) is not None and self.is_lost(grant, pod):
                continue  # its node releases it
            going = pod["metadata"].get("deletionTimestamp") or pod["status"].get("phase") in ("Succeeded", "Failed")
            said = core.resizer.status.explain(pod["metadata"]["uid"]) if asked and not going else None
            if (
                asked
                and not going
                and (said is None or (said.phase not in ("done", "refused") and "Insufficient" not in said.sentence))
            ):
                yield f"{pod['metadata']['name']}: {said}"

    def _check_resize(self, core: Core, pod: dict[str, Any], grant: Grant) -> None:
        """The book counts no more than a pod's grant when nothing is under way."""
        resized = names.ANNOTATION_RESIZE in pod["metadata"]["annotations"] and self._may_resize(pod)
        resized &= not self.is_lost(grant, pod)  # its node may have released it already
        held = core.book.grants[grant.grant_id] if resized else None
        if held is not None and (held.whole or held.grant).containers != grant.containers:
            raise Violation(f"P7: the book counts something else than the grant of {pod['metadata']['name']}")

    def _check_gang(self, core: Core, gang: GangState) -> None:
        """P5 of a gang: it waits for pods that do not exist, or for capacity."""
        if gang.gathered:
            members = [core.book.pods[uid] for uid in gang.waiting]
            transaction = Transaction(core.book)
            tried = place_gang(gang, by_size(members), core.engine, core.grants, transaction=transaction)
            transaction.roll_back()
            if tried.misfit is None:
                raise Violation(f"P5: gang {gang.key} waits although it fits")


def is_part(grant: Grant) -> bool:
    return not serving_node(grant) and all(
        part.strategy in ("advisory", "interposer") for part in grant.containers.values()
    )


def exceeds_share(has: ContainerGrant, granted: ContainerGrant) -> bool:
    """A container on another node than its GPU's has nothing of a GPU of its own."""
    given = {share.uuid: share for share in granted.gpus}
    return any(
        mine.memory_mib > given[mine.uuid].memory_mib or mine.compute_milli > given[mine.uuid].compute_milli
        for mine in has.gpus
    )


def _count(container: ContainerGrant, used: dict[tuple[str, str], list[int]]) -> None:
    for share in container.gpus:
        total = used.setdefault((share.node, share.uuid), [0, 0])
        total[0] += share.memory_mib
        total[1] += share.compute_milli


def bound_grant(pod: dict[str, Any]) -> Grant | None:
    """The grant with which the pod was bound; None if it is not bound, or has none."""
    text = (pod["metadata"].get("annotations") or {}).get(names.ANNOTATION_GRANT)
    return decode(text) if text and pod["spec"].get("nodeName") else None


decode = functools.lru_cache(maxsize=4096)(decode_grant)
