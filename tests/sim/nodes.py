"""Nodes: the real agent core with its checkpoint, and a kubelet that starts and stops containers when it gets to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from services.node_agent import messages as a
from services.node_agent.core import Agent
from services.node_agent.rehearsals import is_due
from services.node_agent.state import Checkpoint, KnownGrant
from services.placement import messages as m
from shared.contracts.events import SliceReleased
from shared.contracts.node_commands import Accepted, LiveSlice, NodeSyncAnswer
from shared.model import names
from shared.model.grant import ContainerGrant, decode_grant
from shared.model.network import NetworkLink, RemoteAbility
from shared.model.timestamps import seconds_text
from tests.sim.checker import Fault, Use
from tests.sim.idle import Idlers
from tests.sim.nats import Violation
from tests.sim.slices import Slices
from tests.support import build

if TYPE_CHECKING:
    from tests.sim.leaders import Leader
    from tests.sim.preemptors import Preemptor
    from tests.sim.simulation import Simulation


def raise_first(faults: Iterable[Fault]) -> None:
    """Raises what the checker has found."""
    for fault in faults:
        raise Violation(f"{fault.rule}: {fault.text}")


NEAR = NetworkLink(rtt_us=5, mib_s=20_000)


class SimNode:
    def __init__(self, simulation: Simulation, name: str, gpus: int) -> None:
        self.simulation, self.name, self.gpus = simulation, name, gpus
        self.indices = list(range(gpus))
        """The numbers of its GPUs, in this boot."""
        self.ahead_s = 0.0
        """By how much its monotonic clock is ahead."""
        self._boots, self._checkpoints = 1, 0
        self._replaced: Counter[str] = Counter()
        """How often the GPU of a slot was replaced, by the UUID of the first one."""
        self.saved = msgspec.msgpack.encode(Checkpoint(node=name))
        self.agent = Agent(name)
        self.alive = True
        self.rogue = False
        """Whether it reports falsely about other nodes and about terms. About itself it reports correctly: false
        reports about its own GPUs would harm only itself."""
        self._slow_until = 0.0
        self._inbox: dict[type[a.Input], list[tuple[a.Input, Leader]]] = {}
        """Orders that came while it was slow, by kind."""
        self.running: dict[tuple[str, str], tuple[str, ContainerGrant]] = {}
        """Containers that run, by pod uid and name: their grant's id and their GPUs. Survives a restart of the agent,
        but not a reboot."""
        self.slices = Slices(self, simulation.turns.park_mib())
        self._servers: set[tuple[str, str]] = set()
        """Of these: servers for containers of other nodes."""
        self._orders: dict[tuple[str, str], list[a.Serve | a.FindServer | a.EndServer]] = {}
        self.changes = 0
        """Counts changes of `running`, and restarts of the agent."""
        self._seen: dict[str, tuple[str, str, str]] = {}
        """Pods that the kubelet knows as its own: uid to namespace, name and grant annotation."""
        self._inventory()
        self._idlers = Idlers(self)
        simulation.clock.after(0.5, self._kubelet)
        simulation.clock.after(1.0, self._tick)

    # --- life -------------------------------------------------------------------------------------------------

    def crash_agent(self) -> None:
        if self.alive:
            self.simulation.clock.tell(f"the agent of {self.name} crashes")
            self.alive = False
            self._orders.clear()

    def restart_agent(self) -> None:
        if not self.alive:
            self.simulation.clock.tell(f"the agent of {self.name} restarts")
            self.changed()
            self._begin_agent()
            self._inventory()
            for lease in self.agent.store.leases:
                if (lease.uid, lease.container) not in self.running:
                    self.handle(a.ContainerEnded(lease.uid, lease.container))  # it has checked what runs

    def reboot(self) -> None:
        self.simulation.clock.tell(f"{self.name} reboots")
        self._boots += 1
        self._end_all()
        self._begin_agent()
        self._inventory()

    def lose_checkpoint(self, *, reboots: bool) -> None:
        """The machine is installed anew; or all its containers have ended, its agent's files are deleted, and the agent
        starts again, as it demands where they are damaged. The kubelet starts again what is bound here."""
        self._checkpoints += 1
        self.saved = msgspec.msgpack.encode(Checkpoint(node=self.name, checkpoint_id=str(self._checkpoints)))
        if reboots:
            self.simulation.clock.tell(f"{self.name} is installed anew")
            self._seen.clear()
            self.reboot()
            return
        self.simulation.clock.tell(f"all containers of {self.name} end, and its agent starts without a checkpoint")
        self._end_all()
        self._begin_agent()
        self._inventory()

    def replace_gpu(self, number: int) -> None:
        """The node reboots with another GPU in this slot."""
        uuid = f"{self.name}-gpu-{number}"
        self._replaced[uuid] += 1
        self.simulation.clock.tell(f"GPU {uuid} is replaced")
        self.reboot()

    def _end_all(self) -> None:
        self.simulation.lost |= {grant_id for key, (grant_id, _) in self.running.items() if key in self._servers}
        self.simulation.lost |= {known.grant_id for known in self.agent.store.known if known.is_serving}
        self.running = {}
        self.slices.rebooted()
        self._servers.clear()
        self._orders.clear()
        self.changed()

    def _begin_agent(self) -> None:
        self.alive = True
        self.agent = Agent(self.name, msgspec.msgpack.decode(self.saved, type=Checkpoint))
        self._idlers.agent_begins()

    def changed(self) -> None:
        """Something else runs here now, or with other amounts: the node's journal says what."""
        self.changes += 1
        running = {
            key: Use(grant_id, {gpu.uuid: (gpu.memory_mib, gpu.compute_milli) for gpu in taken.gpus})
            for key, (grant_id, share) in self.running.items()
            for taken in (self.slices.taken(key, share),)
        }
        raise_first(self.simulation.checker.ran(self.name, running))

    def runs(self, grant_id: str) -> bool:
        return any(running == grant_id for running, _ in self.running.values())

    def _inventory(self) -> None:
        seen = build.inventory(self.name, gpus=self.gpus, boot=f"{self.name}-boot-{self._boots}")
        present = tuple(
            msgspec.structs.replace(gpu, uuid=f"{gpu.uuid}-{self._replaced[gpu.uuid]}")
            if self._replaced[gpu.uuid]
            else gpu
            for gpu in seen.gpus
        )
        seen = msgspec.structs.replace(seen, gpus=present)
        if self.indices != sorted(self.indices):
            numbered = zip(seen.gpus, self.indices, strict=True)
            gpus = sorted((msgspec.structs.replace(gpu, index=i) for gpu, i in numbered), key=lambda gpu: gpu.index)
            seen = msgspec.structs.replace(seen, gpus=tuple(gpus))
        seen = self.simulation.mig.inventory(self.simulation.turns.inventory(seen, self.slices.park_mib))
        if self.simulation.remote:
            network = {f"n{i}": NEAR for i in range(3) if f"n{i}" != self.name}
            ability = RemoteAbility(address=f"{self.name}:1", client=True, network=network)
            seen = msgspec.structs.replace(seen, remote=ability)
        self.handle(a.InventorySeen(seen))
        self.tell_all()

    def tell_all(self) -> None:
        for reader in (*self.simulation.leaders, *self.simulation.turns.preemptors):
            self.tell_inventory(reader)

    def tell_inventory(self, reader: Leader | Preemptor) -> None:
        """The newest value in the KV bucket, for a watch."""
        inventory = self.agent.gpus.inventory
        if inventory is not None:
            # A watch of KV resumes by itself, so this arrives however often it is cut.
            self.simulation.clock.after(0.01, lambda: reader.hear(m.InventorySeen(inventory)))

    def _tick(self) -> None:
        if self.alive:
            self.handle(a.Tick())
            self._kill_a_server()
            for leader in self.simulation.leaders:
                self.simulation.network.send(self.name, leader.name, lambda x=leader: x.hear(m.BeatSeen((self.name,))))  # type: ignore[misc]
        self.simulation.clock.after(2.0, self._tick)

    # --- the bus ----------------------------------------------------------------------------------------------

    def order(self, event: a.Input, leader: Leader) -> None:
        """Orders of one kind keep their order. The agent reads each kind separately, so between kinds there is no
        order."""
        if self._slow_until > self.simulation.clock.now or self._inbox:
            self._inbox.setdefault(type(event), []).append((event, leader))
        else:
            self.handle(event, leader)

    def stall(self, seconds: float) -> None:
        """A slow disk or a starved process: for this long no order is processed, and then one after another, of any
        kind."""
        self.simulation.clock.tell(f"the agent of {self.name} stalls for {seconds:.1f} s")
        self._slow_until = self.simulation.clock.now + seconds
        self.simulation.clock.after(seconds, self._take_one)

    def _take_one(self) -> None:
        if not self._inbox:
            return
        kind = self.simulation.rng.choice(list(self._inbox))
        event, leader = self._inbox[kind].pop(0)
        if not self._inbox[kind]:
            del self._inbox[kind]
        self.handle(event, leader)
        gaps_s = (0.0,) if self.simulation.network.calm else (0.0, 0.01, 0.3, 2.0)
        self.simulation.clock.after(self.simulation.rng.choice(gaps_s), self._take_one)

    def lie(self) -> None:
        """Reports falsely that others' grants are released, dead or suspended, and that there are higher terms."""
        simulation, rng = self.simulation, self.simulation.rng
        others = self._grants_of_others()
        if not others:
            return
        grant_id = rng.choice(others).grant_id
        lies: tuple[m.Input, ...] = (
            m.SyncAnswered(
                NodeSyncAnswer(node=self.name, boot_id=f"{self.name}-boot-{self._boots}", term=2**50, accepted=False)
            ),
            m.GrantAcknowledged(self.name, grant_id, ok=False, reason="a lie", dead=True),
            m.GrantAcknowledged(self.name, grant_id, ok=False, reason="a lie"),
            m.ReleaseSeen(self.name, grant_id, "a lie"),
        )
        lie = rng.choice(lies)
        simulation.clock.tell(f"{self.name} lies: {lie}")
        for leader in simulation.leaders:
            simulation.network.send(self.name, leader.name, lambda x=leader: x.hear(lie))  # type: ignore[misc]

    def _grants_of_others(self) -> list[KnownGrant]:
        return [
            known
            for node in self.simulation.nodes.values()
            if node is not self
            for known in node.agent.store.known
            if known.peer != self.name
        ]

    def _embellished(self, answer: NodeSyncAnswer) -> NodeSyncAnswer:
        """Its own truth, and lies about the grants of others."""
        others = self._grants_of_others()
        if not self.rogue or not others:
            return answer
        known = self.simulation.rng.choice(others)
        live = tuple(
            LiveSlice(
                uid=known.grant.uid,
                namespace=known.grant.namespace,
                name=known.grant.name,
                container="c",
                grant_id=known.grant_id,
                strategy="exclusive",
                gpus={f"{self.name}-gpu-0": (1, 1)},
            )
            for _ in range(1)
        )
        return msgspec.structs.replace(
            answer, tombstones=(*answer.tombstones, *(k.grant_id for k in others)), live=(*answer.live, *live)
        )

    def handle(self, event: a.Input, leader: Leader | None = None) -> list[a.Command]:
        if not self.alive:
            return []
        said = self.agent.handle(event, self.simulation.clock.now + self.ahead_s)
        for command in said:
            match command:
                case a.Save():
                    self.saved = msgspec.msgpack.encode(self.agent.checkpoint())
                    if not self.simulation.network.calm and self.simulation.rng.random() < 0.002:
                        self.crash_agent()  # durable, and nothing was reported after it
                        self.simulation.clock.after(3.0, self.restart_agent)
                        return []
                case a.Answer():
                    self._answer(command.body, leader)
                case a.Serve() | a.FindServer() | a.EndServer():
                    self._order_server(command)
                case a.ResizeSlices():
                    self._resize(command, leader)
                case a.SuspendSlices():
                    self.slices.order(command, leader)
                case a.Publish():
                    if isinstance(command.event, SliceReleased):
                        self._released(command.event)
        return said

    def _resize(self, order: a.ResizeSlices, leader: Leader | None) -> None:
        """The slices take a moment, and a program may have more than it is to keep. A growth may take longer, for
        memory that was lent to others."""
        simulation, agent = self.simulation, self.agent
        draw = simulation.resizes
        used = order.task.shrinks and not simulation.network.calm and draw.random() < 0.3
        reason = "the program has more" if used else ""

        def done() -> None:
            if self.agent is not agent:
                return  # it has crashed meanwhile, and its successor goes on from the checkpoint
            if not reason:
                for container in order.task.containers:
                    if (order.task.uid, container) in self.running:
                        share = order.task.after.containers[container]
                        self.running[order.task.uid, container] = (order.task.grant_id, share)
                        self.changed()
            self.handle(a.ResizeDone(order.request, order.task, reason), leader)

        simulation.clock.after(0.01 if simulation.network.calm else draw.choice((0.0, 0.05, 1.0, 4.0)), done)

    def _answer(self, body: Accepted | NodeSyncAnswer, leader: Leader | None) -> None:
        if leader is None:
            return
        heard: m.Input
        if isinstance(body, NodeSyncAnswer):
            self.simulation.clock.tell(
                f"{self.name} answers the sync of {body.term}: accepted {body.accepted}, live "
                f"{[s.name for s in body.live]}"
            )
            heard = m.SyncAnswered(self._embellished(body))
        else:
            heard = m.GrantAcknowledged(
                self.name,
                body.grant_id,
                body.ok,
                body.reason,
                dead=body.dead,
                amendment=body.amendment,
                shrunk=body.shrunk,
                not_resized=body.not_resized,
                suspension=body.suspension,
                number=body.number,
                whole=body.whole,
                cannot_checkpoint=body.cannot_checkpoint,
            )
        self.simulation.network.send(self.name, leader.name, lambda: leader.hear(heard))
        if isinstance(body, NodeSyncAnswer) and not self.simulation.network.calm and self.simulation.rng.random() < 0.2:
            self.simulation.clock.after(
                self.simulation.rng.uniform(0.5, 15.0), lambda: leader.hear(heard)
            )  # the same answer, late

    def _released(self, event: SliceReleased) -> None:
        self.simulation.clock.tell(
            f"{self.name} gives back {event.grant_id} of {event.name or event.uid}: {event.reason}"
        )
        for leader in self.simulation.leaders:
            self.simulation.network.send(
                self.name, leader.name, lambda x=leader: x.hear(m.ReleaseSeen(self.name, event.grant_id, event.reason))
            )  # type: ignore[misc]

    # --- servers for other nodes --------------------------------------------------------------------------------

    def _order_server(self, order: a.Serve | a.FindServer | a.EndServer) -> None:
        """Carried out one after the other for each container, each after a while."""
        orders = self._orders.setdefault((order.uid, order.container), [])
        orders.append(order)
        if len(orders) == 1:
            self._later(order)

    def _later(self, order: a.Serve | a.FindServer | a.EndServer) -> None:
        delay_s = 0.1 if self.simulation.network.calm else self.simulation.remote_rng.uniform(0.0, 3.0)
        self.simulation.clock.after(delay_s, lambda: self._carry_out(order))

    def _carry_out(self, order: a.Serve | a.FindServer | a.EndServer) -> None:
        key = (order.uid, order.container)
        if not any(order is waiting for waiting in self._orders.get(key, ())):
            return  # the agent that gave it is gone
        said: a.Input
        if isinstance(order, a.Serve):
            self.simulation.clock.tell(f"{self.name} serves {order.grant_id} to {order.peer}")
            self.running[key] = (order.grant_id, order.share)
            self._servers.add(key)
            said = a.ServerStarted(*key, order.grant_id)
        elif isinstance(order, a.FindServer):
            said = a.ServerFound(*key, order.grant_id, key in self._servers)
        else:
            self.simulation.clock.tell(f"{self.name} ends the server of {order.grant_id}")
            self.running.pop(key, None)
            self._servers.discard(key)
            said = a.ServerEnded(*key, order.grant_id)
        self.changed()
        self._orders[key].pop(0)
        following = self._orders[key][0] if self._orders[key] else None
        self.handle(said)
        if following is not None:
            self._later(following)

    def _kill_a_server(self) -> None:
        rng = self.simulation.remote_rng
        if not self._servers or self.simulation.network.calm or rng.random() > 0.05:
            return
        key = rng.choice(sorted(self._servers))
        self.simulation.clock.tell(f"the server of {key} on {self.name} ends by itself")
        grant_id, _ = self.running.pop(key)
        self._servers.discard(key)
        self.changed()
        self.handle(a.ServerEnded(*key, grant_id, by_itself="killed"))

    # --- the kubelet ------------------------------------------------------------------------------------------

    def _kubelet(self) -> None:
        """Checks its pods, with a delay: starts those that are bound here, stops those that are deleted."""
        simulation = self.simulation
        present = {}
        for pod in list(simulation.api.all("Pod")):
            meta = pod["metadata"]
            if pod["spec"].get("nodeName") == self.name:
                present[meta["uid"]] = pod
                self._seen.setdefault(
                    meta["uid"],
                    (meta["namespace"], meta["name"], (meta.get("annotations") or {}).get(names.ANNOTATION_GRANT, "")),
                )
        for uid, (namespace, name, grant) in list(self._seen.items()):
            pod = present.get(uid)
            if pod is None and simulation.rng.random() < 0.3 and not simulation.network.calm:
                self._start(uid, name, grant)  # it does not know yet that the pod was deleted
            elif (
                pod is None
                or pod["metadata"].get("deletionTimestamp")
                or pod["status"].get("phase") in ("Succeeded", "Failed")
            ):
                self._stop(uid, namespace, name, pod is not None)
            else:
                self._start(uid, name, grant)
                if simulation.rng.random() < simulation.turns.ends(uid):
                    simulation.clock.tell(f"{name} ends by itself on {self.name}")
                    self._end_containers(uid)
                    simulation.api.patch("Pod", namespace, name, {"status": {"phase": "Succeeded"}})
                    simulation.record()
        simulation.clock.after(0.3 if simulation.network.calm else simulation.rng.uniform(0.1, 3.0), self._kubelet)

    def _annotated(self, uid: str, name: str) -> str:
        """The grant that the pod has in the API server now. Another one than its kubelet has seen where etcd was
        restored and the pod was bound here once more."""
        meta = (self.simulation.api.get("Pod", name, "default") or {}).get("metadata", {})
        grant = (meta.get("annotations") or {}).get(names.ANNOTATION_GRANT)
        return decode_grant(grant).grant_id if grant and meta["uid"] == uid else ""

    def _start(self, uid: str, name: str, grant: str) -> None:
        if not grant or not self.alive:
            return
        for container in decode_grant(grant).containers:
            if (uid, container) in self.running:
                continue
            for said in self.handle(a.StartRequested(uid, container)):
                if isinstance(said, a.HandOver):
                    self.simulation.clock.tell(f"{self.name} starts {name}/{container} with {said.grant_id}")
                    bound_by, annotated = decode_grant(grant).grant_id, self._annotated(uid, name)
                    if said.grant_id not in (bound_by, annotated) and bound_by not in self.simulation.revived:
                        raise Violation(
                            f"P4: {name}/{container} is handed {said.grant_id}, and its pod was bound with {bound_by}"
                        )
                    # What it has of another node's GPU is counted there.
                    share = said.share if said.remote is None else msgspec.structs.replace(said.share, gpus=())
                    self.running[uid, container] = (said.grant_id, share)
                    self.slices.started((uid, container), said.suspension)
                    self.changed()
        if self.simulation.turns.drawn and any(key[0] == uid for key in self.running):
            self._report_start(uid, name)
        if uid in self.simulation.turns.cannot_checkpoint and self.slices.runs(uid):
            self._rehearse(uid)

    def _report_start(self, uid: str, name: str) -> None:
        """The kubelet's part of the pod's status: without a start time a pod has had no GPU time."""
        simulation = self.simulation
        pod = simulation.api.get("Pod", name, "default")
        if pod is not None and pod["metadata"]["uid"] == uid and pod["status"].get("phase") == "Pending":
            status = {"phase": "Running", "startTime": seconds_text(simulation.clock.now)}
            simulation.api.patch("Pod", "default", name, {"status": status})
            simulation.record()

    def _rehearse(self, uid: str) -> None:
        """Finds out that the pod's programs cannot be checkpointed, if no order was first."""
        known = self.agent.store.find_by_pod(uid)
        if known is not None and is_due(known) and self.simulation.turns.rng.random() < 0.3:
            self.handle(a.Rehearsed(known.grant_id, "the driver cannot checkpoint it"))

    def _stop(self, uid: str, namespace: str, name: str, exists: bool) -> None:
        if any(key[0] == uid for key in self.running) and not self.alive:
            return  # the end is reported to the agent, and there is none now
        self._end_containers(uid)
        if exists:
            pod = self.simulation.api.get("Pod", name, namespace)
            if pod is not None and pod["metadata"]["uid"] == uid and pod["metadata"].get("deletionTimestamp"):
                self.simulation.api.delete("Pod", namespace, name, {"gracePeriodSeconds": 0}, self.simulation.clock.now)
                self.simulation.record()
                self._seen.pop(uid, None)
        elif not any(key[0] == uid for key in self.running):
            self._seen.pop(uid, None)

    def _end_containers(self, uid: str) -> None:
        for key in [k for k in self.running if k[0] == uid and k not in self._servers]:
            del self.running[key]
            self.slices.ended(key)
            self.changed()
            self.handle(a.ContainerEnded(*key))
