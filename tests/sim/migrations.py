"""Migrations in the simulation: a preemptor that may migrate pods for a pending one, and a controller that replaces
pods.

D1: what migrations disturb in an hour is within its limit. D2: a pod that is migrated has a controller and no higher
priority than those that get its place, and when nothing fails its gang can do without it. What is disturbed is computed
here from the API server's objects, and not by the product.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from shared.contracts.facts import Fact
from shared.contracts.preemption import Plan, Victim
from shared.model import names
from shared.model.grant import decode_grant
from shared.model.life import started_at
from shared.model.objects import Pod
from shared.model.units import WHOLE_GPU_MILLI
from tests.sim.nats import Violation
from tests.sim.slices import milli_of

if TYPE_CHECKING:
    from tests.sim.simulation import Simulation

PART = 0.5
"""How many of the worlds with a preemptor have migrations."""
LIMITS_GPU_S = (3, 15, 3600)
PATIENCE = 0.1
"""The preemptor's `reclaim_patience`: worlds last for two minutes."""
JOB = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "j", "controller": True}
SMALL = {names.RESOURCE_GPU_MEMORY: "20Gi", names.RESOURCE_GPU_COMPUTE: "30"}
LATE_S = 15.0
"""How much later than the API server a preemptor may see that a pod has started, which is then cheaper."""


class Migrations:
    """All is drawn from its own generator, so that worlds without migrations stay what they are."""

    def __init__(self, simulation: Simulation, seed: int, *, possible: bool) -> None:
        self._simulation = simulation
        self.rng = random.Random(f"{seed} migrations")
        self.drawn = self.rng.random() < PART and possible
        self.limit_gpu_s = self.rng.choice(LIMITS_GPU_S) if self.drawn else 0
        self.more_pods = self.rng.randint(10, 30) if self.drawn else 0
        self._written: dict[str, dict[str, Any]] = {}
        """By uid: the pod as it was written."""
        self._replaced: set[str] = set()
        """Uids of pods for which the controller has made others, or is about to."""
        self._made: set[str] = set()
        """Uids of the replacements that are not bound yet."""
        self._targets: Counter[str] = Counter()
        """How many migrated pods are expected on each node."""
        self._prices: dict[str, dict[str, float]] = {}
        """By plan, then by uid of its victims: what each loses, in GPU-seconds, when the plan is proposed."""
        self._evicted: set[tuple[str, str]] = set()
        """By plan and victim: the evictions that were requested, perhaps several times."""
        self.happened: Counter[str] = Counter()

    def pod(self, pod: dict[str, Any]) -> dict[str, Any]:
        """Makes many pods small, members of gangs always, and spreads them, so that larger ones do not fit though there
        is room."""
        meta = pod["metadata"]
        if not self.drawn:
            return pod
        small = bool(meta["annotations"].get(names.ANNOTATION_GANG)) or self.rng.random() < 0.6
        ask = SMALL if small else {names.RESOURCE_GPU: self.rng.choice(("1", "1", "2"))}
        notes = {**meta["annotations"], **({names.ANNOTATION_POLICY: "spread"} if small else {})}
        (container,) = pod["spec"]["containers"]
        resources = {"limits": ask, "requests": {"cpu": "1", **ask}}
        spec = {**pod["spec"], "containers": [{**container, "resources": resources}]}
        return {**pod, "metadata": {**meta, "annotations": notes, "ownerReferences": [JOB]}, "spec": spec}

    def begin(self) -> None:
        if self.drawn and self.rng.random() < 0.5:
            self._simulation.clock.after(self.rng.uniform(5.0, 30.0), self._set_a_clock)

    def _set_a_clock(self) -> None:
        """Forward and back, in any order."""
        simulation = self._simulation
        if not simulation.network.calm:
            preemptor = self.rng.choice(simulation.turns.preemptors)
            preemptor.clock_is_set(self.rng.choice((2.0, 60.0, 900.0)) * self.rng.choice((1, -1)))
            simulation.clock.after(self.rng.uniform(1.0, 20.0), self._set_a_clock)

    # --- the controller -----------------------------------------------------------------------------------------

    def created(self, uid: str, written: dict[str, Any]) -> None:
        if self.drawn:
            self._written[uid] = written

    def see(self, facts: Iterable[Fact]) -> None:
        """The controller sees these changes."""
        for fact in facts if self.drawn else ():
            pod = fact.object
            if not isinstance(pod, Pod) or not pod.metadata.owner_references:
                continue
            uid, node = pod.metadata.uid, pod.spec.node_name
            if uid in self._made and node:
                self._made.discard(uid)
                self.happened["replacements where they were to go"] += self._targets[node] > 0
                self._targets[node] -= self._targets[node] > 0
            ended = pod.status.phase in ("Succeeded", "Failed")
            if pod.metadata.deletion_timestamp and not ended and uid not in self._replaced:
                self._replaced.add(uid)
                self._replace(uid, pod.metadata.name)

    def _replace(self, uid: str, name: str) -> None:
        """Makes another pod like it, sometimes before it has ended."""

        def make() -> None:
            self._simulation.clock.tell(f"the controller of {name} creates another pod")
            self._made.add(self._simulation.submit(self._written[uid]))

        if self._simulation.turns.phase in ("faults", "turning"):
            self._simulation.clock.after(self.rng.choice((0.02, 0.2, 3.0)), make)

    # --- the preemptor ------------------------------------------------------------------------------------------

    def proposed(self, plan: Plan) -> None:
        """Notes what a plan would disturb."""
        if plan.consolidates:
            self.happened["plans"] += 1
            found = {victim.uid: self._pod(victim.name, victim.uid) for victim in plan.victims}
            self._prices[plan.plan_id] = {uid: self._price_gpu_s(pod) for uid, pod in found.items() if pod is not None}

    def evicts(self, plan: Plan, uids: Collection[str]) -> None:
        """Checks the evictions that are requested for a plan."""
        if not plan.consolidates:
            return
        for victim in (victim for victim in plan.victims if victim.uid in uids):
            pod = self._pod(victim.name, victim.uid)
            if pod is None or (plan.plan_id, victim.uid) in self._evicted:
                continue
            if victim.action != "move" or not pod["metadata"].get("ownerReferences"):
                raise Violation(f"D2: {plan.plan_id} has {victim.action} for {victim.name}, which gets no replacement")
            for gains in plan.beneficiaries:
                other = self._pod(gains.name, gains.uid)
                if other is not None and _priority(other) < _priority(pod):
                    raise Violation(f"D2: {victim.name} is migrated for {gains.name}, which is less important")
            self._check_gang(plan, victim)
            self._evicted.add((plan.plan_id, victim.uid))
            self._targets[victim.to] += 1
            self.happened["evictions"] += 1
        disturbed = sum(self._prices.get(plan_id, {}).get(uid, 0.0) for plan_id, uid in self._evicted)
        # Each of two preemptors that believe to lead has a limit of its own.
        most = self.limit_gpu_s * len(self._simulation.turns.preemptors)
        if disturbed > most:
            raise Violation(f"D1: migrations have disturbed {disturbed:.1f} GPU-seconds of {most} in an hour")

    def _check_gang(self, plan: Plan, victim: Victim) -> None:
        """While pods are deleted and messages late, nothing that is known of a gang need still be so."""
        if self._simulation.turns.phase != "turning" or victim.uid not in self._simulation.nats.gang_of:
            return
        gang, part = self._simulation.nats.gang_of[victim.uid]
        going = {other.uid for other in plan.victims}
        left = 0
        for pod in self._simulation.api.all("Pod"):
            meta = pod["metadata"]
            runs = pod["spec"].get("nodeName") and pod["status"].get("phase") not in ("Succeeded", "Failed")
            if runs and not meta.get("deletionTimestamp") and meta["uid"] not in going:
                left += self._simulation.nats.gang_of.get(meta["uid"]) == (gang, part)
        if left < self._simulation.gangs[gang][part]:
            raise Violation(f"D2: {victim.name} is migrated, and its gang {gang} has {left} left")

    def _pod(self, name: str, uid: str) -> dict[str, Any] | None:
        pod = self._simulation.api.get("Pod", name, "default")
        return pod if pod is not None and pod["metadata"]["uid"] == uid else None

    def _price_gpu_s(self, pod: dict[str, Any]) -> float:
        """What the pod loses at least: the time since its start, with its GPUs."""
        text = pod["metadata"]["annotations"].get(names.ANNOTATION_GRANT)
        started = started_at(msgspec.convert(pod, Pod))
        if not text or started is None:
            return 0.0
        gpus = milli_of(decode_grant(text)) / WHOLE_GPU_MILLI
        return gpus * max(0.0, self._simulation.clock.now - started - LATE_S)


def _priority(pod: dict[str, Any]) -> int:
    priority: int = pod["spec"].get("priority", 0)
    return priority
