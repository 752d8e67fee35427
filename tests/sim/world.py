"""The whole world of one seed, its faults, and the properties that must hold after every step."""

from __future__ import annotations

import random
from collections.abc import Callable

from services.placement.core import Core
from services.placement.gangs.placing import by_size, place_gang, take_back
from services.watcher.sim_cluster import SimulatedCluster
from shared.book.gangs import GangState
from shared.contracts.facts import Fact
from shared.model import names
from shared.model.grant import decode_grant
from tests.sim.clock import Clock, Network
from tests.sim.leaders import Leader
from tests.sim.log import SimLog, Violation
from tests.sim.nodes import SimNode
from tests.sim.rebuild import compare_with_rebuilt
from tests.sim.watchers import Watcher

GPU_MIB, GPU_MILLI = 81920, 1000
FAULTY_S, CALM_S = 60.0, 400.0
ASKS = (
    {names.RESOURCE_GPU: "1"},
    {names.RESOURCE_GPU: "2"},
    {names.RESOURCE_GPU_MEMORY: "40Gi"},
    {names.RESOURCE_GPU_COMPUTE: "50"},
    {names.RESOURCE_GPU_MEMORY: "20Gi", names.RESOURCE_GPU_COMPUTE: "30"},
    {},
)


class World:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.clock = Clock(self.rng)
        self.network = Network(self.clock)
        self.api = SimulatedCluster(uid_prefix=f"{seed & 0xFFFFFFFF:08x}")
        self.history: list[Fact] = []
        self.gangs: dict[str, int] = {}
        """How many members of each must be decided together."""
        self.log = SimLog(self.clock, self.gangs)
        self.hint: tuple[str, float] = ("", 0.0)
        self.bound = 0
        self._changed_at = self.clock.now
        self.pods = 0
        self.leaders: list[Leader] = []
        self.nodes: dict[str, SimNode] = {}
        for i in range(self.rng.randint(1, 3)):
            self._add_node(f"n{i}")
        self.leaders = [Leader(self, i) for i in range(2)]
        self.watchers = [Watcher(self, i) for i in range(2)]
        for _ in range(self.rng.randint(4, 14)):
            self.clock.after(self.rng.uniform(0, FAULTY_S * 0.8), self._create_pod)
        for number in range(self.rng.randint(0, 2)):
            self._create_gang(f"g{number}", self.rng.uniform(0, FAULTY_S * 0.6))
        self.clock.after(1.0, self._fault)

    def run(self) -> None:
        """Faults for a while, then calm; raises Violation."""
        while self.clock.next_at < 1_000.0 + FAULTY_S:
            self._step()
        self._calm()
        end = self.clock.now + CALM_S
        while self.clock.next_at < end:
            self._step()
            if self.clock.steps % 64 == 0 and self._at_rest():
                break
        self._finish()

    def _step(self) -> None:
        self.clock.step()
        self._check()

    def record(self) -> None:
        """What happened at the API server becomes history, for watchers to see in their own time."""
        happened = self.api.take()
        if happened:
            self.history += happened
            self._changed_at = self.clock.now

    # --- users and faults -------------------------------------------------------------------------------------

    def _add_node(self, name: str) -> None:
        capacity = {"cpu": "16", "memory": "64Gi", "pods": "20"}
        self.api.create("Node", {"metadata": {"name": name, "labels": {"kerf.sim/side": name[-1]}}, "status": {"allocatable": capacity, "capacity": capacity}}, self.clock.now)
        self.record()
        if name not in self.nodes:
            self.nodes[name] = SimNode(self, name, self.rng.randint(1, 2))

    def _create_gang(self, name: str, at_s: float) -> None:
        """Its pods come within a few seconds; one of them may be more than it needs."""
        size = self.rng.randint(2, 4)
        minimum = self.rng.choice((size, size, size - 1))
        self.gangs[name] = minimum
        notes = {names.ANNOTATION_GANG: name, names.ANNOTATION_GANG_SIZE: str(size), names.ANNOTATION_GANG_MIN: str(minimum)}
        if self.rng.random() < 0.3:
            notes[names.ANNOTATION_GANG_TOPOLOGY] = self.rng.choice(("required=kerf.sim/side", "preferred=kerf.sim/side"))
        for _ in range(size):
            self.clock.after(at_s + self.rng.uniform(0, 3), lambda: self._create_pod(notes))

    def _create_pod(self, notes: dict[str, str] | None = None) -> None:
        self.pods += 1
        ask = self.rng.choice(ASKS)
        container = {"name": "c", "resources": {"limits": ask, "requests": {"cpu": "1", **ask}}}
        pod = {
            "metadata": {"name": f"p{self.pods}", "namespace": "default", "annotations": notes or {}},
            "spec": {"schedulerName": names.SCHEDULER_NAME, "priority": self.rng.choice((0, 0, 10)), "containers": [container]},
        }
        of = f" in gang {notes[names.ANNOTATION_GANG]}" if notes else ""
        self.clock.tell(f"a user creates p{self.pods}{of} asking for {ask}")
        _, made = self.api.create("Pod", pod, self.clock.now)
        if notes:
            self.log.gang_of[made["metadata"]["uid"]] = notes[names.ANNOTATION_GANG]
        self.record()

    def _some_pod(self) -> dict | None:  # type: ignore[type-arg]
        pods = list(self.api.all("Pod"))
        return self.rng.choice(pods) if pods else None

    def _fault(self) -> None:
        if self.network.calm:
            return
        kinds: list[Callable[[], None]] = [
            self._delete_pod, self._delete_pod, self._force_delete, self._edit_pod, self._crash_leader, self._freeze_leader, self._freeze_leader,
            self._crash_watcher, self._crash_agent, self._reboot, self._cut, self._wipe, self._node_goes,
        ]  # fmt: skip
        self.rng.choice(kinds)()
        self.record()
        self.clock.after(self.rng.uniform(0.2, 6.0), self._fault)

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
        pod = self._some_pod()
        if pod:
            self.clock.tell(f"a user edits {pod['metadata']['name']}")
            self.api.patch("Pod", "default", pod["metadata"]["name"], {"metadata": {"labels": {"edited": str(self.clock.steps)}}})

    def _crash_leader(self) -> None:
        leader = self.rng.choice(self.leaders)
        leader.crash()
        self.clock.after(self.rng.uniform(0.1, 10.0), leader.restart)

    def _freeze_leader(self) -> None:
        leader = self.rng.choice(self.leaders)
        leader.freeze()
        self.clock.after(self.rng.uniform(0.1, 20.0), leader.thaw)

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
        who = self.rng.choice(names_)
        self.clock.tell(f"{who} is cut off")
        self.network.cut.add(who)
        self.clock.after(self.rng.uniform(0.5, 10.0), lambda: self._mend(who))

    def _mend(self, who: str) -> None:
        if who in self.network.cut:
            self.clock.tell(f"{who} is reached again")
            self.network.cut.discard(who)

    def _wipe(self) -> None:
        if self.rng.random() < 0.3:
            self.clock.tell("NATS loses everything")
            self.log.wipe()

    def _node_goes(self) -> None:
        if self.rng.random() < 0.2:
            name = self.rng.choice(list(self.nodes))
            self.clock.tell(f"{name} is deleted from Kubernetes")
            self.api.delete("Node", "", name, {}, self.clock.now)
            self.clock.after(self.rng.uniform(1.0, 15.0), lambda: self._add_node(name))

    def _calm(self) -> None:
        self.clock.tell("--- calm ---")
        self.network.calm = True
        self.network.cut.clear()
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

    def to_node(self, leader: Leader, name: str, do: Callable[[SimNode], None]) -> None:
        node = self.nodes[name]
        self.network.send(leader.name, name, lambda: do(node), ordered=f"{leader.name}>{name}")

    # --- properties -------------------------------------------------------------------------------------------

    def _check(self) -> None:
        """P1 and P4, from what the API server holds and what truly runs, without asking any book."""
        used: dict[tuple[str, str], list[int]] = {}
        counted: set[str] = set()
        for pod in self.api.all("Pod"):
            text = (pod["metadata"].get("annotations") or {}).get(names.ANNOTATION_GRANT)
            if text and pod["spec"].get("nodeName") and pod["status"].get("phase") not in ("Succeeded", "Failed"):
                self._count(decode_grant(text), used, counted)
        for node in self.nodes.values():
            known = {g.grant.grant_id: g.grant for g in node.agent.grants()} if node.running else {}
            leases = {(lease.uid, lease.container): lease for lease in node.agent.held.leases} if node.running else {}
            for (uid, container), grant_id in node.running.items():
                lease = leases.get((uid, container))
                if lease is None and node.alive:
                    raise Violation(f"P4: {uid}/{container} runs on {node.name} without a lease")
                if grant_id in known:
                    self._count(known[grant_id], used, counted)
        for (name, uuid), (mib, milli) in used.items():
            if mib > GPU_MIB or milli > GPU_MILLI:
                raise Violation(f"P1: {uuid} of {name} is booked with {mib} MiB and {milli} milli by {sorted(counted)}")

    def _count(self, grant: object, used: dict[tuple[str, str], list[int]], counted: set[str]) -> None:
        grant_id = grant.grant_id  # type: ignore[attr-defined]
        if grant_id in counted:
            return
        for container in grant.containers.values():  # type: ignore[attr-defined]
            for share in container.gpus:
                if grant_id in self.nodes[share.node].agent.released and not self._runs(share.node, grant_id):
                    continue
                counted.add(grant_id)
                total = used.setdefault((share.node, share.uuid), [0, 0])
                total[0] += share.memory_mib
                total[1] += share.compute_milli

    def _runs(self, node: str, grant_id: str) -> bool:
        return grant_id in self.nodes[node].running.values()

    def leading(self) -> Core | None:
        for leader in self.leaders:
            if leader.core is not None and leader.core.phase == "leading" and leader.term == self.log.newest_term:
                return leader.core
        return None

    def _at_rest(self) -> bool:
        core = self.leading()
        settled = self.clock.now - max(self._changed_at, 1_000.0 + FAULTY_S + 27.0) > 3.0
        if core is None or core.holds or not settled:
            return False
        if core.nodes.synced_count < len(self.nodes):
            return False
        leaving = any(g.phase == "leaving" for g in core.book.grants.values())
        return not leaving and all(line.parked for line in core.queue.lines.values())

    def _finish(self) -> None:
        core = self.leading()
        if core is None:
            raise Violation("P5: no leader although all is calm")
        if core.holds:
            raise Violation(f"P5: holds without an end: {sorted(h.decision.name for h in core.holds.values())}")
        waiting = [s for s in core.book.pods.values() if s.wants_place and s.uid in core.queue]
        for state in waiting:
            if state.gang is None and core.placer.engine.decide(state) is not None:
                raise Violation(f"P5: {state.key} waits although it fits")
        for gang in core.placer.gangs.by_key.values():
            self._check_gang(core, gang)
        lost = [
            p["metadata"]["name"]
            for p in self.api.all("Pod")
            if not p["spec"].get("nodeName") and not p["metadata"].get("deletionTimestamp") and p["metadata"]["uid"] not in core.queue
        ]
        if lost:
            raise Violation(f"pods that nobody places: {lost}")
        compare_with_rebuilt(self, core)

    def _check_gang(self, core: Core, gang: GangState) -> None:
        """P5 of a gang: it waits for pods that do not exist, or for room."""
        if gang.gathered:
            members = [core.book.pods[uid] for uid in gang.waiting]
            tried = place_gang(gang, by_size(members), gang.need, core.placer.engine, core.decider.grant)
            take_back(tried.placed, core.placer.engine)
            if tried.misfit is None:
                raise Violation(f"P5: gang {gang.key} waits although it fits")
