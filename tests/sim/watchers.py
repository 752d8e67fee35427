"""Watcher processes: the real core between a simulated API server and the bus."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from services.placement import messages as m
from services.watcher.core import Core, WireBatch
from shared.contracts.base import decode, encode
from shared.contracts.commands import (
    AmendGrant,
    Answer,
    Bind,
    DeletePod,
    Evict,
    Patch,
    ReportPending,
    SuspendPod,
    TouchPod,
)
from shared.contracts.facts import Fact, Gone, SnapshotPage
from shared.model import names
from shared.model.grant import decode_grant
from shared.model.resize import exceeds
from shared.model.suspension import annotated_suspension, suspension_patch
from tests.sim.clock import Poll
from tests.sim.nats import Violation

if TYPE_CHECKING:
    from tests.sim.leaders import Leader
    from tests.sim.preemptors import Preemptor
    from tests.sim.simulation import Simulation


class Watcher:
    """Sees the API server's changes in order and with a delay; may lose its watch, and then resumes or lists again."""

    def __init__(self, simulation: Simulation, index: int) -> None:
        self.simulation, self.name = simulation, f"watcher-{index}"
        self._starts = 0
        self.alive = False
        self.lags_until = 0.0
        """Until then it sees nothing new."""
        self.restart()

    def restart(self) -> None:
        self._starts += 1
        self.alive = True
        self.core = Core(f"{self.name}-{self._starts}")
        self._say(self.core.facts(self.simulation.api.snapshot(), self.simulation.clock.now))
        self._cursor = len(self.simulation.history)
        start = self._starts
        self._loop(start)
        self._beat(start)

    def crash(self) -> None:
        self.simulation.clock.tell(f"{self.name} crashes")
        self.alive = False
        self._starts += 1

    def _beat(self, start: int) -> None:
        if self._starts == start:
            self._say(self.core.tick(self.simulation.clock.now))
            self.simulation.clock.after(0.9, lambda: self._beat(start))

    def _loop(self, start: int) -> None:
        if self._starts != start:
            return
        simulation = self.simulation
        rng = simulation.rng
        if not simulation.network.calm and rng.random() < 0.01:
            self._cut(rng)
        end = len(simulation.history)
        if self._cursor < end and (simulation.network.calm or simulation.clock.now >= self.lags_until):
            take = end if simulation.network.calm else min(end, self._cursor + rng.randint(1, 4))
            self._say(self.core.facts(simulation.history[self._cursor : take], simulation.clock.now))
            self._cursor = take
        if simulation.clock.now >= self.core.due:
            self._say(self.core.tick(simulation.clock.now))
        if simulation.network.calm:
            simulation.clock.poll(Poll(0.01, lambda now: self._is_idle(start, now), lambda: self._loop(start)))
            return
        delay = rng.choice((0.005, 0.02, 0.1, 1.0 if rng.random() < 0.1 else 0.02))
        simulation.clock.after(delay, lambda: self._loop(start))

    def _is_idle(self, start: int, now: float) -> bool:
        return self._starts == start and self._cursor == len(self.simulation.history) and now < self.core.due

    def _cut(self, rng: Any) -> None:
        """The watch is cut. Half the time its place in history is lost too (410), and only comparing lists helps."""
        if rng.random() < 0.5:
            self.simulation.clock.tell(f"{self.name} lists again after a lost watch")
            self._relist()

    def _relist(self) -> None:
        listed = self.simulation.api.snapshot()
        present = {fact.object.metadata.uid for fact in listed}
        lost: list[Fact] = []
        for kind in ("Pod", "Node"):
            lost += [
                Gone(object=known, certain=False)
                for uid, known in list(self.core._store[kind].items())
                if uid not in present
            ]
        self._say(self.core.facts([*lost, *listed], self.simulation.clock.now))
        self._cursor = len(self.simulation.history)

    def _say(self, commands: list[Any]) -> None:
        for command in commands:
            if isinstance(command, WireBatch):
                payload = encode(command)
                for reader in (*self.simulation.leaders, *self.simulation.turns.preemptors):
                    self._send_batch(reader, payload)

    def _send_batch(self, reader: Leader | Preemptor, payload: bytes) -> None:
        self.simulation.network.send(
            self.name, reader.name, lambda: reader.feed.batch(payload), ordered=f"{self.core.epoch}>{reader.name}"
        )

    # --- orders -----------------------------------------------------------------------------------------------

    def snapshot(self, answer: Callable[[SnapshotPage], None]) -> None:
        if not self.alive:
            return
        self._relist()
        commands, page = self.core.snapshot("", 0, self.simulation.clock.now)
        self._say(commands)
        decoded = decode(encode(page), SnapshotPage)
        for number in range(1, page.pages):
            _, more = self.core.snapshot(page.snapshot, number, self.simulation.clock.now)
            decoded = SnapshotPage(
                **{f: getattr(decoded, f) for f in decoded.__struct_fields__}
                | {"facts": decoded.facts + decode(encode(more), SnapshotPage).facts}
            )
        answer(decoded)

    def bind(self, binds: tuple[Bind, ...], sequence: int, leader: Leader) -> None:
        if not self.alive:
            return
        self.core.saw_sequence(sequence)
        for bind in binds:
            if self.core.find("Node", bind.node) is None:
                self._answer(leader, Answer(uid=bind.uid, outcome="no-node", resource_version=bind.resource_version))
            else:
                self._post(bind, leader)

    def _post(self, bind: Bind, leader: Leader) -> None:
        """The POST may be slow, lost or doubled; its answer may be lost too."""
        self.simulation.network.send(self.name, "api", lambda: self._at_api(bind, leader))

    def post(self, bind: Bind, leader: Leader) -> None:
        """A POST that has been under way for long."""
        if not self.simulation.network.calm:
            self._at_api(bind, leader)

    def _at_api(self, bind: Bind, leader: Leader) -> None:
        simulation = self.simulation
        meta = {
            "uid": bind.uid,
            "resourceVersion": bind.resource_version,
            "annotations": {names.ANNOTATION_GRANT: bind.grant} if bind.grant else {},
        }
        status, _ = simulation.api.bind(
            bind.namespace, bind.name, {"metadata": meta, "target": {"name": bind.node}}, simulation.clock.now
        )
        outcome = {201: "done", 404: "gone", 409: "conflict"}[status]
        simulation.clock.tell(
            f"the API server answers {outcome} to the binding of {bind.name} at {bind.resource_version} to {bind.node}"
        )
        if status == 201:
            logged = simulation.nats.decided.get((bind.uid, bind.resource_version), set())
            made = (bind.node, decode_grant(bind.grant).grant_id if bind.grant else "")
            if made not in logged:
                raise Violation(f"P3: {bind.name} was bound as {made}, the log had {sorted(logged)}")
            if bind.grant and int(bind.resource_version) <= simulation.restored_at:
                simulation.revived.add(decode_grant(bind.grant).grant_id)
            simulation.bound += 1
            simulation.bound_at.setdefault(bind.uid, simulation.clock.now)
        simulation.record()
        if outcome != "done":
            self._answer(leader, Answer(uid=bind.uid, outcome=outcome, resource_version=bind.resource_version))  # type: ignore[arg-type]

    def _answer(self, leader: Leader, answer: Answer) -> None:
        self.simulation.network.send(self.name, leader.name, lambda: leader.hear(m.BindsAnswered((answer,))))

    def patch(self, patches: tuple[Patch, ...], leader: Leader) -> None:
        if not self.alive:
            if not any(watcher.alive for watcher in self.simulation.watchers):
                leader.hear(m.TouchesNotSent(tuple(patch.uid for patch in patches if isinstance(patch, TouchPod))))
            return
        for patch in patches:
            if isinstance(patch, TouchPod):
                self.simulation.network.send(self.name, "api", lambda p=patch: self._touch(p, leader))  # type: ignore[misc]
            elif isinstance(patch, AmendGrant):
                if not self.simulation.delays(patch, self):
                    self.simulation.network.send(self.name, "api", lambda p=patch: self.amend(p))  # type: ignore[misc]
            elif isinstance(patch, SuspendPod):
                if not self.simulation.turns.delays(patch, self):
                    self.simulation.network.send(self.name, "api", lambda p=patch: self.suspend(p))  # type: ignore[misc]
            elif isinstance(patch, ReportPending) and self.simulation.turns.drawn:
                self._report(patch)
            elif isinstance(patch, DeletePod):
                self.simulation.network.send(self.name, "api", lambda p=patch: self._delete(p))  # type: ignore[misc]

    def _touch(self, patch: TouchPod, leader: Leader) -> None:
        simulation = self.simulation
        if patch.uid in simulation.untouchable:
            if int(patch.uid[-1], 16) % 2:
                return  # its webhook hangs, or undoes what was written: no answer is a refusal
            refused = Answer(uid=patch.uid, outcome="refused", message="a webhook says no")
            simulation.network.send(self.name, leader.name, lambda: leader.hear(m.PatchesAnswered((refused,))))
            return
        body = {"metadata": {"uid": patch.uid, "annotations": {names.ANNOTATION_TOUCHED: patch.token}}}
        simulation.api.patch("Pod", patch.namespace, patch.name, body)
        simulation.record()

    def amend(self, patch: AmendGrant) -> None:
        """Writes the grant at the version that it is for. A growth that is written must be in the log (R2)."""
        simulation = self.simulation
        pod = simulation.api.get("Pod", patch.name, patch.namespace)
        if pod is None or patch.uid in simulation.untouchable:
            return
        meta = {
            "uid": patch.uid,
            "resourceVersion": patch.resource_version,
            "annotations": {names.ANNOTATION_GRANT: patch.grant},
        }
        status, _ = simulation.api.patch("Pod", patch.namespace, patch.name, {"metadata": meta})
        simulation.clock.tell(
            f"the API server answers {status} to the amendment of {patch.name} at {patch.resource_version}"
        )
        if status != 200:
            return
        before = decode_grant(pod["metadata"]["annotations"][names.ANNOTATION_GRANT])
        after = decode_grant(patch.grant)
        step, skips = after.amendment - before.amendment, simulation.disasters.happened["restore_etcd"]
        if step < 1 or (step > 1 and not skips):
            raise Violation(f"P7: {patch.name} was amended from {before.amendment} to {after.amendment}")
        if exceeds(after, before) and after not in simulation.nats.amended.get((patch.uid, patch.resource_version), ()):
            raise Violation(f"P3: {patch.name} has grown at {patch.resource_version}, and the log has no such growth")
        simulation.resized += 1
        simulation.record()

    def suspend(self, patch: SuspendPod) -> None:
        """Writes annotation and GPU time together, at the version that they are for."""
        simulation = self.simulation
        pod = simulation.api.get("Pod", patch.name, patch.namespace)
        if pod is None or patch.uid in simulation.untouchable:
            return
        notes = suspension_patch(patch.suspension)
        notes |= {names.ANNOTATION_GPU_TIME: patch.gpu_time} if patch.gpu_time else {}
        if annotated_suspension(pod["metadata"].get("annotations") or {}) == patch.suspension:
            return
        meta = {"uid": patch.uid, "resourceVersion": patch.resource_version, "annotations": notes}
        status, _ = simulation.api.patch("Pod", patch.namespace, patch.name, {"metadata": meta})
        does = f"the suspension {patch.suspension}" if patch.suspension else "the resumption"
        simulation.clock.tell(f"the API server answers {status} to {does} of {patch.name}: {patch.reason}")
        if status == 200:
            simulation.turns.annotated(patch, pod)
            simulation.record()

    def evict(self, orders: tuple[Evict, ...], answer: Callable[[tuple[Answer, ...]], None]) -> None:
        """The Eviction API; answers those that were not accepted."""
        if not self.alive:
            return
        simulation, failed = self.simulation, list[Answer]()
        for order in orders:
            pod = simulation.api.get("Pod", order.name, order.namespace)
            if pod is None or pod["metadata"]["uid"] != order.uid:
                failed.append(Answer(uid=order.uid, outcome="gone"))
                continue
            simulation.clock.tell(f"{order.name} is evicted: {order.reason}")
            options = {"deleteOptions": {"preconditions": {"uid": order.uid}}}
            simulation.api.evict(order.namespace, order.name, options, simulation.clock.now)
        simulation.record()
        answer(tuple(failed))

    def _report(self, patch: ReportPending) -> None:
        """The condition by which a preemptor that starts finds the pods that do not fit."""
        pod = self.simulation.api.get("Pod", patch.name, patch.namespace)
        if pod is None or pod["metadata"]["uid"] != patch.uid or pod["spec"].get("nodeName"):
            return
        said = {"type": "PodScheduled", "status": "False", "reason": patch.reason}
        self.simulation.api.patch("Pod", patch.namespace, patch.name, {"status": {"conditions": [said]}})
        self.simulation.record()

    def _delete(self, patch: DeletePod) -> None:
        self.simulation.clock.tell(f"{patch.name} is deleted for its controller to make another: {patch.reason}")
        preconditions = {"uid": patch.uid, "resourceVersion": patch.resource_version}
        self.simulation.api.delete(
            "Pod", patch.namespace, patch.name, {"preconditions": preconditions}, self.simulation.clock.now
        )
        self.simulation.record()
