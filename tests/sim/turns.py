"""Turns in the simulation: which worlds have them, what is drawn for them, and what must hold.

T1: no more GPU memory is on a host than it takes. T2: nothing is evicted for a turn. T3: a pod's GPU time never
decreases, and is never more than the time since its Binding. T4: when all is calm a job gets its turn within the bound
that `kerf when` tells. T5: when nothing proposes turns any more all plans end, hosts hold what is booked, every
suspended pod for which there is room has resumed, and in the end all have. P1 counts what the containers really have.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from services.placement import messages as m
from services.placement.core import Core
from services.placement.explain.turns import standing
from services.preemptor import messages as pm
from shared.book.states import GrantState
from shared.contracts.commands import SuspendPod
from shared.contracts.events import Event, PreemptionAbandoned, PreemptionExecuted, PreemptionReserved
from shared.model import names
from shared.model.gpu import HostMemory, Inventory
from shared.model.grant import Grant, decode_grant
from shared.model.suspension import annotated_suspension, decode_suspension
from shared.queues.turns import is_waiting
from shared.turns.gpu_time import read_gpu_time
from tests.sim.nats import Violation
from tests.sim.preemptors import Preemptor
from tests.sim.slices import GPU_MIB, milli_of

if TYPE_CHECKING:
    from tests.sim.leaders import Leader
    from tests.sim.simulation import Simulation
    from tests.sim.watchers import Watcher

MIN_TURN_S, MAX_WAIT_S, WATCHDOG_S = 3, 20, 15
QUEUES = f"""
turns: {{level_bounds_gpu_s: [4, 12, 40], min_turn_s: {MIN_TURN_S}, max_wait_s: {MAX_WAIT_S},
        watchdog_s: {WATCHDOG_S}}}
queues: [{{name: research, turns: allowed}}, {{name: serving}}]
"""
PART = 0.3
"""How many worlds have turns."""
UNBOUNDED_MIB = 1 << 30
HOSTS_MIB = (0, 40_960, GPU_MIB, 2 * GPU_MIB, 4 * GPU_MIB)
TURNING_S, RESTING_S, DRAINING_S = 45.0, 60.0, 400.0
SKEW_S = 3.0
COPIES_S = 30.0
"""What copies and looks of the preemptor add to a bound that knows none of them."""


class Turns:
    """All is drawn from its own generator, so that worlds without turns stay what they are."""

    def __init__(self, simulation: Simulation, seed: int) -> None:
        self._simulation = simulation
        self.rng = random.Random(f"{seed} turns")
        self.drawn = self.rng.random() < PART
        self.pure = self.drawn and self.rng.random() < 0.4
        """All pods take turns in one circle, and hosts have room for all: there the bound of `kerf when` holds."""
        own = random.Random(f"{seed} copies")  # so that the other draws stay what they were
        self._often = not self.pure and own.random() < 0.3
        self.copies_end = ("",) * (2 if self._often else 8) + ("slow", "fails", "fails in part")
        """How copies may end, each as likely."""
        self.preemptors: list[Preemptor] = []
        self.protection: dict[str, pm.ProtectionRestored] = {}
        """The protection records by owner, as the bus keeps them."""
        self.happened: Counter[tuple[str, str | None]] = Counter()
        self.phase = "faults"
        self.cannot_checkpoint: set[str] = set()
        self._promised: dict[str, tuple[float, float]] = {}
        """By job that waits: since when, and until when it was told that its turn comes."""
        self._resized = 0
        """How many slices had been resized when the bounds were looked at."""
        self._most_milli: dict[str, int] = {}
        """By uid: the most of GPUs that the pod has been granted. Its slices may have been resized since."""

    @staticmethod
    def draws(seed: int) -> bool:
        """Whether the world of this seed has turns."""
        return random.Random(f"{seed} turns").random() < PART

    def begin(self) -> None:
        if not self.drawn:
            return
        simulation = self._simulation
        policy = {"metadata": {"name": "kerf-policy", "namespace": "kerf-system"}, "data": {"queues.yaml": QUEUES}}
        simulation.api.create("ConfigMap", policy, simulation.clock.now)
        simulation.record()
        checkpoints = self.rng.random() < 0.5
        count = 1 if self.pure else self.rng.choice((1, 1, 2))
        self.preemptors = [Preemptor(simulation, index, checkpoints=checkpoints) for index in range(count)]
        for preemptor in self.preemptors:
            preemptor.start()
        simulation.clock.after(self.rng.uniform(2.0, 20.0), self._fault)
        simulation.clock.after(1.0, self._look)

    @property
    def copies_fail(self) -> bool:
        """Whether they may now; in some worlds also when nothing else fails any more."""
        return not self._simulation.network.calm or (self._often and self.phase == "turning")

    # --- what is drawn --------------------------------------------------------------------------------------------

    def clock_skew_s(self) -> float:
        return self.rng.choice((0.0, 0.0, 0.0, SKEW_S, -SKEW_S)) if self.drawn else 0.0

    def park_mib(self) -> int:
        """What a node's host takes."""
        if not self.drawn:
            return 0
        return UNBOUNDED_MIB if self.pure else self.rng.choice(HOSTS_MIB)

    def inventory(self, seen: Inventory, park_mib: int) -> Inventory:
        if not self.drawn:
            return seen
        offers = ("exclusive", "advisory", "interposer")
        return msgspec.structs.replace(seen, strategies=offers, host_memory=HostMemory(park_mib=park_mib))

    def pod(self, pod: dict[str, Any], gang: str) -> dict[str, Any]:
        """Most pods take turns, by their queue or by themselves; all of a gang are in one queue."""
        if not self.drawn:
            return pod
        draw = random.Random(f"{self._simulation.seed} {gang}") if gang else self.rng
        queue, takes = draw.choice(("research", "research", "serving")), draw.random() < 0.7
        priority = draw.choice((0, 0, 0, 10))
        if self.pure:
            queue, takes, priority = "research", True, 0
        meta, notes = pod["metadata"], dict(pod["metadata"]["annotations"])
        if takes:
            notes[names.ANNOTATION_ISOLATION] = "firm"
            notes |= {names.ANNOTATION_TURNS: "allowed"} if queue == "serving" or draw.random() < 0.3 else {}
        spec = {**pod["spec"], "priority": priority}
        return {**pod, "metadata": {**meta, "annotations": notes, "labels": {names.LABEL_QUEUE: queue}}, "spec": spec}

    def created(self, uid: str) -> None:
        if self.drawn and not self.pure and self.rng.random() < 0.1:
            self.cannot_checkpoint.add(uid)

    def ends(self, uid: str) -> float:
        """How likely it is that a pod has ended when its kubelet looks."""
        if not self.drawn:
            return 0.02
        if any(not node.slices.runs(uid) for node in self._simulation.nodes.values()):
            return 0.0
        in_faults = 0.04 if self._simulation.migrations.drawn else 0.01
        return {"faults": in_faults, "turning": 0.0, "resting": 0.0, "draining": 0.1}[self.phase]

    def _fault(self) -> None:
        simulation = self._simulation
        if simulation.network.calm:
            return
        preemptor = self.rng.choice(self.preemptors)
        preemptor.crash()
        simulation.clock.after(self.rng.uniform(0.1, 6.0), preemptor.start)
        simulation.clock.after(self.rng.uniform(5.0, 40.0), self._fault)

    def delays(self, patch: SuspendPod, watcher: Watcher) -> bool:
        """Some suspensions and resumptions are on their way for long. The leader may die meanwhile, with its log."""
        simulation = self._simulation
        if simulation.network.calm or self.rng.random() > 0.1:
            return False
        simulation.clock.tell(f"the order {patch.suspension or 'to resume'} for {patch.name} is late")
        simulation.clock.after(self.rng.uniform(1.0, 15.0), lambda: watcher.suspend(patch))
        if self.rng.random() < 0.5:
            if self.rng.random() < 0.3:
                simulation.nats.wipe()
            for leader in simulation.leaders:
                leader.crash()
                simulation.clock.after(0.1, leader.restart)
        return True

    # --- phases -----------------------------------------------------------------------------------------------------

    def calm(self) -> None:
        """No faults any more: one preemptor is left, and has forgotten what failed."""
        if self.drawn:
            self.phase = "turning"
            for preemptor in self.preemptors:
                preemptor.crash()
            self.preemptors[0].start()

    def rest(self) -> None:
        self.phase = "resting"
        for preemptor in self.preemptors:
            preemptor.crash()

    def drain(self) -> None:
        self.phase = "draining"

    # --- the bus ------------------------------------------------------------------------------------------------------

    def placement_says(self, command: m.AnswerPlan | m.Publish, leader: Leader) -> None:
        send = self._simulation.network.send
        if isinstance(command, m.AnswerPlan):
            answer = command.answer
            if not answer.ok and answer.reason:
                self._simulation.clock.tell(f"{leader.name} refuses {answer.plan_id}: {answer.reason}")
            for preemptor in self.preemptors:
                send(leader.name, preemptor.name, lambda x=preemptor: x.answered(answer) if x.alive else None)  # type: ignore[misc]
            return
        self._count(command.event)
        heard = pm.to_input(command.event)
        for preemptor in self.preemptors if heard is not None else ():
            send(leader.name, preemptor.name, lambda x=preemptor: x.hears_public(heard) if x.alive else None)  # type: ignore[misc]

    def _count(self, event: Event) -> None:
        if isinstance(event, PreemptionReserved | PreemptionExecuted | PreemptionAbandoned):
            why = f": {event.reason}" if isinstance(event, PreemptionAbandoned) else ""
            said = {"PreemptionReserved": "reserved", "PreemptionExecuted": "executed"}.get(
                type(event).__name__, "abandoned"
            )
            self._simulation.clock.tell(f"plan {event.plan.plan_id} is {said}{why}")
            resumes = event.plan.beneficiaries[0].resumes
            kind = "turn of a suspended job" if resumes else "turn of a new job" if event.plan.turn else "preemption"
            self.happened[said, kind] += 1

    # --- properties ------------------------------------------------------------------------------------------

    def stored(self, uid: str, notes: Mapping[str, str]) -> None:
        """A pod has these annotations from now on."""
        if self.drawn and (grant := notes.get(names.ANNOTATION_GRANT)):
            self._most_milli[uid] = max(self._most_milli.get(uid, 0), milli_of(decode_grant(grant)))

    def annotated(self, patch: SuspendPod, before: dict[str, Any]) -> None:
        """T3, of a suspension or resumption that was written over this object."""
        simulation = self._simulation
        self.happened["written", patch.suspension and decode_suspension(patch.suspension).action] += 1
        had = read_gpu_time(before["metadata"]["annotations"])
        pod = simulation.api.get("Pod", patch.name, patch.namespace)
        has = None if pod is None else read_gpu_time(pod["metadata"]["annotations"])
        if has is None:
            if had is not None:
                raise Violation(f"T3: {patch.name} has lost its record of GPU time")
            return
        if had is not None and (has.attained_gpu_ms, has.turns) < (had.attained_gpu_ms, had.turns):
            raise Violation(f"T3: the GPU time of {patch.name} was {had}, and is {has}")
        bound_at = simulation.bound_at.get(patch.uid, simulation.clock.now)
        most = (simulation.clock.now - bound_at + 1.0 + 2 * SKEW_S * (1 + has.turns)) * self._most_milli[patch.uid]
        if has.attained_gpu_ms > most:
            raise Violation(f"T3: {patch.name} has had {has.attained_gpu_ms} GPU milliseconds of at most {most:.0f}")

    def _look(self) -> None:
        """T4: every second, while turns are taken and nothing fails."""
        if self.phase == "turning" and self.pure and (core := self._simulation.leading()) is not None:
            self._check_bounds(core)
        if self.phase in ("faults", "turning"):
            self._simulation.clock.after(1.0, self._look)

    def _check_bounds(self, core: Core) -> None:
        if self._simulation.untouchable:
            return  # one that no order can change keeps its GPU
        if self._resized != self._simulation.resized:
            # Others fit beside it now: what was told is told anew.
            self._resized, self._promised = self._simulation.resized, {}
        now, kept = self._simulation.clock.now, dict[str, tuple[float, float]]()
        for state in core.book.pods.values():
            held = core.book.grants.get(state.grant_id)
            if state.suspension is None or state.gang is not None or held is None or len(_gpus(held.given)) != 1:
                continue
            if not is_waiting(state) or state.ended or state.pod.metadata.deletion_timestamp:
                continue
            if self._shares_with_one_that_stays(held, core):
                continue
            told = standing(state, core.book, core.turns, now)
            if told is None or told.idle or state.uid in self._simulation.untouchable:
                continue
            job = core.turns.job(state, now)
            since, until = self._promised.get(job.key, (job.since, float("inf")))
            if since != job.since:
                since, until = job.since, float("inf")
            until = min(until, now + told.within_s + COPIES_S)
            if now > until:
                raise Violation(
                    f"T4: {state.key} waits since {job.since - 1_000:.1f}, and was told until {until - 1_000:.1f}"
                )
            kept[job.key] = (since, until)
        self._promised = kept

    @staticmethod
    def _shares_with_one_that_stays(held: GrantState, core: Core) -> bool:
        """Whether a pod that takes no turns has some of its GPUs, as a gang does that has a member without any GPU."""
        return any(
            other.uid in core.book.pods and not core.turns.takes_turns(core.book.pods[other.uid])
            for other in core.book.nodes[held.node].grants.values()
            if _gpus(other.grant) & _gpus(held.given)
        )

    def at_rest(self, core: Core) -> bool:
        """Whether nothing that suspends or resumes is under way."""
        return not self.drawn or not self.unfinished(core)

    def unfinished(self, core: Core) -> str:
        """What is still to be done though no turn is proposed any more; empty if nothing is."""
        now, simulation = self._simulation.clock.now, self._simulation
        for plan_id, found in core.preemption.reservations.items():
            # One that is given up stays open until its victim is seen at another version.
            if (
                not found.closing
                or found.placeholders
                or not any(victim.uid in simulation.untouchable for victim in found.plan.victims)
            ):
                return f"plan {plan_id} is open"
        if core.preemption.migrations._kept:
            return "places are kept for replacements"
        for unit in core.suspension._over(now):
            if all(state.uid not in simulation.untouchable for state in unit) and (
                any(core.suspension.returns(state) for state in unit) or core.suspension._has_room(unit)
            ):
                return f"{[state.key for state in unit]} could resume"
        kept = {v.grant_id for found in core.preemption.reservations.values() for v in found.plan.victims}
        checkpointed: set[str] = set()
        for pod in simulation.api.all("Pod"):
            notes, uid = pod["metadata"].get("annotations") or {}, pod["metadata"]["uid"]
            text = annotated_suspension(notes)
            suspension = decode_suspension(text) if text else None
            gone = pod["metadata"].get("deletionTimestamp") or pod["status"].get("phase") in ("Succeeded", "Failed")
            if gone or names.ANNOTATION_GRANT not in notes or not pod["spec"].get("nodeName"):
                continue
            grant = decode_grant(notes[names.ANNOTATION_GRANT])
            if uid in simulation.untouchable | simulation.ever_excluded or simulation.is_lost(grant, pod):
                continue
            if suspension is not None and self.phase == "draining":
                return f"{pod['metadata']['name']} has not resumed"
            if suspension is not None and suspension.action == "checkpoint":
                checkpointed.add(grant.grant_id)
            for node in simulation.nodes.values():
                if not node.slices.is_as_ordered(uid, suspension):
                    return f"{pod['metadata']['name']} is not yet as ordered on {node.name}: {suspension}"
        passed_over = {
            held.grant_id
            for held in core.book.grants.values()
            if held.uid in simulation.untouchable | simulation.ever_excluded
        }
        kept |= simulation.revived  # of what came back with a backup of etcd, by a grant that its node has released
        if core.book.parked - passed_over - kept != checkpointed - passed_over - kept:
            return f"on hosts are {sorted(checkpointed)}, and booked {sorted(core.book.parked)}"
        return ""


def _gpus(grant: Grant) -> set[str]:
    return {gpu.uuid for part in grant.containers.values() for gpu in part.gpus}
