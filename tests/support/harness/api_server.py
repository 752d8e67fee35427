"""A simulated API server: the pods, disruption budgets, evictions, and the controllers that replace evicted pods."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from services.placement import messages as m
from shared.contracts.commands import Answer, Evict, SuspendPod
from shared.contracts.facts import Gone, Put
from shared.model import names
from shared.model.affinity import LabelSelector
from shared.model.grant import Grant
from shared.model.kube_object import Meta, OwnerReference
from shared.model.objects import DisruptionBudgetSpec, DisruptionBudgetStatus, Pod, PodDisruptionBudget, PodStatus
from shared.model.suspension import decode_suspension
from tests.support import build
from tests.support.harness.placement import Placement
from tests.support.harness.terminations import Terminations, is_terminating

EPOCH_S = 1_800_000_000.0
TEAM = "team"
BUDGET = "budget"
RACK = "topology.kubernetes.io/rack"


class Clock:
    """The placement core's time: simulated seconds, and the same as seconds since 1970."""

    def __init__(self, placement: Placement) -> None:
        self._placement = placement

    @property
    def now(self) -> float:
        return self._placement.now

    @property
    def wall(self) -> float:
        return EPOCH_S + self.now

    def stamp(self) -> str:
        """Returns the current time in whole seconds, as the API server writes it."""
        return datetime.fromtimestamp(self.wall, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class ApiServer:
    """`send` receives the facts. `assert_justified` is called with each pod that is about to be evicted, and its plan.

    The budgets' statuses reach Kerf with the next step, because the API server's are late too.
    """

    def __init__(
        self,
        clock: Clock,
        numbers: Iterator[int],
        send: Callable[[m.FactsSeen], Any],
        assert_justified: Callable[[Pod, str], None],
        *,
        least: Mapping[str, int],
    ) -> None:
        """`least`: by budget label, the minimum of available pods."""
        self._clock, self._numbers, self._send = clock, numbers, send
        self._assert_justified = assert_justified
        self.least = dict(least)
        self.live: dict[str, Pod] = {}
        """The pods by uid."""
        self.ends_at: dict[str, float] = {}
        """By pod name, how long it runs."""
        self.labels: dict[str, str] = {}
        """The budget label by pod name."""
        self.terminations = Terminations()
        self.bound_at: dict[str, list[float]] = defaultdict(list)
        """By pod name, when each pod of that name was bound."""
        self.evictions: list[tuple[float, str, str]] = []
        """(when, name, plan)"""
        self.suspensions: list[tuple[float, str, str]] = []
        """(when, name, action); the action is empty when the pod resumes"""
        self.refused_by_budget = 0

    # --- pods ---------------------------------------------------------------------------------------------------

    def create(
        self,
        name: str,
        *,
        priority: int,
        gpus: int = 1,
        gang: str = "",
        size: int = 1,
        least: int = 0,
        runs_s: float = 1e9,
        label: str = "",
        queue: str = "",
        slice_: tuple[int, int] | None = None,
        turns: bool = False,
        one_rack: bool = False,
        grace_s: int = 0,
        ends_after_s: float | None = None,
    ) -> None:
        """Creates a pending pod. When it is evicted, its controller replaces it under the same name.

        `runs_s`: run time after its Binding. `one_rack`: its gang must be in one rack. `slice_`: GiB and percent of one
        GPU, enforced, instead of whole GPUs. `ends_after_s`: time from its deletion to its end; by default its grace
        period.
        """
        notes = {"kerf.dev/gang": gang, "kerf.dev/gang-size": str(size)} if gang else {}
        notes |= {names.ANNOTATION_GANG_MIN: str(least)} if gang and least else {}
        notes |= {names.ANNOTATION_GANG_TOPOLOGY: f"required={RACK}"} if gang and one_rack else {}
        asks: dict[str, Any] = {"gpus": gpus}
        if slice_ is not None:
            asks = {"memory": f"{slice_[0]}Gi", "compute": slice_[1]}
            notes |= {names.ANNOTATION_ISOLATION: "firm"}
        notes |= {names.ANNOTATION_TURNS: "allowed"} if turns else {}
        pod = build.gpu_pod(
            name,
            **asks,
            priority=priority,
            annotations=notes,
            labels=({BUDGET: label} if label else {}) | ({names.LABEL_QUEUE: queue} if queue else {}),
            uid=f"{name}/{next(self._numbers)}",
            created=self._clock.stamp(),
            termination_grace_period_seconds=grace_s,
        )
        owner = OwnerReference(uid=f"owner-{name}", kind="ReplicaSet", name=name, controller=True)
        pod = msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, owner_references=(owner,)))
        self.ends_at[name], self.labels[name] = runs_s, label
        self.terminations.after_s[name] = grace_s if ends_after_s is None else ends_after_s
        self.show(pod)

    def show(self, pod: Pod) -> None:
        """The pod is as given from now on."""
        self.live[pod.metadata.uid] = pod
        self._send(m.FactsSeen(build.put(pod)))

    def delete(self, pod: Pod) -> None:
        if self.terminations.at_once(pod):
            self.remove(pod)
        else:
            self.show(self.terminations.begin(pod, self._clock.now, self._clock.wall))

    def remove(self, pod: Pod) -> None:
        del self.live[pod.metadata.uid]
        self._send(m.FactsSeen((Gone(object=pod),)))

    def remove_ended(self) -> None:
        """Removes the pods whose termination is over, and those that have run for as long as they run."""
        for uid in self.terminations.over(self._clock.now):
            if uid in self.live:
                self.remove(self.live[uid])
        for pod in [
            p for p in self.live.values() if p.spec.node_name and self._ran_s(p) >= self.ends_at[p.metadata.name]
        ]:
            self.remove(pod)

    def _ran_s(self, pod: Pod) -> float:
        return self._clock.wall - datetime.fromisoformat(pod.status.start_time).timestamp()

    def replace(self, pod: Pod) -> None:
        """The pod's controller creates another one under the same name."""
        notes = {
            key: value
            for key, value in pod.metadata.annotations.items()
            if key not in (names.ANNOTATION_GRANT, names.ANNOTATION_SUSPENDED, names.ANNOTATION_GPU_TIME)
        }
        meta = msgspec.structs.replace(
            pod.metadata,
            uid=f"{pod.metadata.name}/{next(self._numbers)}",
            resource_version=build.next_version(),
            annotations=notes,
            creation_timestamp=self._clock.stamp(),
        )
        spec = msgspec.structs.replace(pod.spec, node_name="")
        self.show(msgspec.structs.replace(pod, metadata=meta, spec=spec, status=PodStatus(phase="Pending")))

    def pending(self) -> list[Pod]:
        return [pod for pod in self.live.values() if not pod.spec.node_name]

    def gangs(self) -> dict[str, list[Pod]]:
        found: dict[str, list[Pod]] = defaultdict(list)
        for pod in self.live.values():
            if gang := pod.metadata.annotations.get(names.ANNOTATION_GANG):
                found[gang].append(pod)
        return found

    # --- Bindings, annotations and evictions ------------------------------------------------------------------------

    def bind(self, pod: Pod, node: str, grant: Grant | None) -> None:
        seen = build.bound(pod, node, grant)
        start = datetime.fromtimestamp(self._clock.wall, UTC).isoformat()
        self.show(msgspec.structs.replace(seen, status=PodStatus(phase="Running", start_time=start)))

    def annotate(self, order: SuspendPod) -> None:
        pod = self.live.get(order.uid)
        if pod is None or pod.metadata.resource_version != order.resource_version:
            return
        notes = {key: value for key, value in pod.metadata.annotations.items() if key != names.ANNOTATION_SUSPENDED}
        notes |= {names.ANNOTATION_SUSPENDED: order.suspension} if order.suspension else {}
        notes |= {names.ANNOTATION_GPU_TIME: order.gpu_time} if order.gpu_time else {}
        notes |= {names.ANNOTATION_GRANT: order.grant} if order.grant else {}
        meta = msgspec.structs.replace(pod.metadata, resource_version=build.next_version(), annotations=notes)
        action = decode_suspension(order.suspension).action if order.suspension else ""
        self.suspensions.append((self._clock.now, order.name, action))
        self.show(msgspec.structs.replace(pod, metadata=meta))

    def evict(self, order: Evict, plan_id: str) -> Answer | None:
        """Simulates the Eviction API with its preconditions and budgets; returns None on success."""
        pod = self.live.get(order.uid)
        if pod is None:
            return self._about_its_next(order)
        if is_terminating(pod):
            return None
        if self._allowed().get(pod.metadata.labels.get(BUDGET, ""), 1) <= 0:
            self.refused_by_budget += 1
            return Answer(uid=order.uid, outcome="throttled", message="it would violate the pod's disruption budget")
        self._assert_justified(pod, plan_id)
        self.evictions.append((self._clock.now, order.name, plan_id))
        self.delete(pod)
        self.replace(pod)
        return None

    def _about_its_next(self, order: Evict) -> Answer:
        """The server looks at the budgets of the pod that has the name by now before it compares uids."""
        bound = [p for p in self.live.values() if p.metadata.name == order.name and p.spec.node_name]
        if any(self._allowed().get(p.metadata.labels.get(BUDGET, ""), 1) <= 0 for p in bound):
            return Answer(uid=order.uid, outcome="throttled", message="it would violate its next pod's budget")
        return Answer(uid=order.uid, outcome="gone")

    def evicted_at(self) -> dict[str, list[float]]:
        """By pod name, when it was evicted."""
        found: dict[str, list[float]] = defaultdict(list)
        for at, name, _ in self.evictions:
            found[name].append(at)
        return found

    # --- budgets ------------------------------------------------------------------------------------------------

    def _allowed(self) -> dict[str, int]:
        healthy = Counter(
            pod.metadata.labels.get(BUDGET, "")
            for pod in self.live.values()
            if pod.spec.node_name and not is_terminating(pod)
        )
        return {label: max(0, healthy[label] - least) for label, least in self.least.items()}

    def show_budgets(self) -> None:
        for label, allowed in self._allowed().items():
            meta = Meta(name=label, namespace=TEAM, uid=f"budget-{label}", resource_version=build.next_version())
            spec = DisruptionBudgetSpec(selector=LabelSelector(match_labels={BUDGET: label}))
            status = DisruptionBudgetStatus(disruptions_allowed=allowed)
            self._send(m.FactsSeen((Put(object=PodDisruptionBudget(metadata=meta, spec=spec, status=status)),)))
