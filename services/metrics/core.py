"""Public events and inventories as figures: usage records out, gauges to be read.

Pure and idempotent: an event that comes twice changes no figure of state (counters of events that come twice after a
crash do rise twice, as Prometheus' counters start again anyway).
"""

from __future__ import annotations

import datetime
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import get_args

import msgspec

from services.metrics.usage import Began, Capacity, Ended, GpuSize, Labelled, Record
from shared.contracts.envelope import Envelope
from shared.contracts.events import (
    Event,
    GpuStateChanged,
    GrantEnded,
    NodeInventoried,
    PlacementDecided,
    PlacementRejected,
    PodBound,
    PodResumed,
    PodSuspended,
    SliceEnforced,
    SliceReleased,
    TermTaken,
)
from shared.contracts.queries import QueueStanding, StatusAnswer
from shared.model.gpu import GpuState, Inventory
from shared.telemetry.metrics import MIB, MILLI, WAITS, Former, Metrics

KNOWN_PODS = 100_000
ENDED_KEPT = 50_000
FIGURES_KEPT_S = 60.0
"""Placement's figures are shown for so long after its last answer: without an end they would look healthy."""


GPU_STATES = frozenset((*get_args(GpuState), "gone"))
OTHER = "other"
"""The label of what an agent may have made up: each value of a label is a series that stays."""


class Held(msgspec.Struct, frozen=True):
    node: str
    gpus: tuple[tuple[str, int, int], ...]


class Core:
    def __init__(self, metrics: Metrics, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._uids: OrderedDict[tuple[str, str], str] = OrderedDict()
        self._held: dict[str, dict[str, Held]] = {}
        """What is handed over, by grant and container."""
        self._ended: OrderedDict[str, None] = OrderedDict()
        """Grants that ended, for a redelivered or late enforcement."""
        self._open: OrderedDict[str, tuple[str, str]] = OrderedDict()
        """Uid and plan of each grant that is suspended: a new leader says it again."""
        self._inventories: dict[str, Inventory] = {}
        self._retired: set[str] = set()
        """Nodes without an inventory that were counted before. One may come back without an event."""
        self._model: dict[str, str] = {}
        self.status = StatusAnswer()
        self.queues: tuple[QueueStanding, ...] = ()
        self._began_s = monotonic()
        self._status_s: float | None = None
        """When placement gave its figures last; None: it has not yet."""
        self._queues_s: float | None = None
        self._declare(metrics)

    # --- in ---------------------------------------------------------------------------------------------------

    def event(self, envelope: Envelope, event: Event | None) -> list[Record]:
        """Reduces one public event; what it means for usage comes back. An event of an unknown type is counted."""
        at_s = seconds_of(envelope.time)
        self._events.of(OTHER if event is None else envelope.type).add()
        uid, namespace, name = (getattr(event, field, "") for field in ("uid", "namespace", "name"))
        if uid and name:
            self._know(namespace, name, uid)
        match event:
            case PlacementDecided():
                self._outcomes.of("decided").add()
                self._waited.observe(event.waited_ms / 1000)
                if event.labels:
                    return [Labelled(event.uid, tuple(sorted(event.labels.items())), round(at_s * 1000))]
            case NodeInventoried():
                return [_capacity(event.node, at_s, event.gpus, event.models, event.gpus_by_model)]
            case PlacementRejected():
                self._outcomes.of("rejected").add()
                self._rejections.of(event.explanation.summary[0].code if event.explanation.summary else "unknown").add()
            case PodBound():
                self._outcomes.of("bound").add()
                self._bound.observe(event.bound_ms / 1000)
            case PodSuspended() | PodResumed():
                self._suspension(event)
            case TermTaken():
                self._term.set(max(self._term.of().value, event.term))
                self._recovery.observe(event.seconds)
            case GpuStateChanged():
                self._gpu_states.of(event.state if event.state in GPU_STATES else OTHER).add()
            case SliceEnforced():
                return self._enforced(event, envelope, at_s)
            case SliceReleased() | GrantEnded():
                return self.end(event.grant_id, at_s, by_node=isinstance(event, SliceReleased))
        return []

    def answered(self, status: StatusAnswer) -> None:
        """Placement's figures of now."""
        self.status, self._status_s = status, self._monotonic()

    def queues_answered(self, queues: tuple[QueueStanding, ...]) -> None:
        """Placement's queues of now."""
        self.queues, self._queues_s = queues, self._monotonic()

    def _suspension(self, event: PodSuspended | PodResumed) -> None:
        if isinstance(event, PodSuspended):
            now, before = (event.uid, event.plan_id), self._open.get(event.grant_id)
            if now == before or event.grant_id in self._ended:
                return
            self._open[event.grant_id] = now
            if len(self._open) > ENDED_KEPT:
                self._open.popitem(last=False)
            self._suspensions.of(event.action, "idle" if event.idle else "turn" if event.turn_of else "other").add()
            return
        self._open.pop(event.grant_id, None)
        self._suspended.of(event.action).observe(event.suspended_ms / 1000)
        if event.moved:
            self._moves.of().add()

    def inventory(self, node: str, inventory: Inventory | None, now_s: float = 0.0) -> list[Record]:
        """What a node has now; None: it has retired."""
        if inventory is None:
            return [] if self._inventories.pop(node, None) is None else self._retire(node, now_s)
        self._inventories[node] = inventory
        for gpu in inventory.gpus:
            self._model[gpu.uuid] = gpu.model
        back: list[Record] = []
        if node in self._retired:
            self._retired.discard(node)
            models = Counter(gpu.model for gpu in inventory.gpus)
            back.append(_capacity(node, now_s, len(inventory.gpus), sorted(models), models))
        return [*back, *(GpuSize(node, gpu.uuid, gpu.memory_mib) for gpu in inventory.gpus)]

    def all_listed(self, counted: Iterable[str], now_s: float) -> list[Record]:
        """When every inventory was given: of the nodes that are `counted`, those without one have retired while this
        process did not run, or before it had read their events."""
        return [record for node in counted if node not in self._inventories for record in self._retire(node, now_s)]

    def _retire(self, node: str, now_s: float) -> list[Record]:
        self._retired.add(node)
        return [Capacity(node, round(now_s * 1000), 0, "")]

    def nodes(self) -> list[str]:
        """Returns the nodes with an inventory."""
        return list(self._inventories)

    def restore(self, live: Iterable[Began]) -> None:
        """What was held when this process ended."""
        for slice_ in live:
            self._held.setdefault(slice_.grant_id, {})[slice_.container] = Held(slice_.node, slice_.gpus)
            self._know(slice_.namespace, slice_.pod, slice_.uid)

    def uid_of(self, namespace: str, name: str) -> str:
        """The newest pod of that name; empty where none was heard of."""
        return self._uids.get((namespace, name), "")

    def _enforced(self, event: SliceEnforced, envelope: Envelope, at_s: float) -> list[Record]:
        gpus = tuple((uuid, mib, milli) for uuid, (mib, milli) in sorted(event.gpus.items()))
        if event.grant_id not in self._ended:
            self._held.setdefault(event.grant_id, {})[event.container] = Held(event.node, gpus)
        return [
            Began(
                event.grant_id,
                event.container,
                event.uid,
                event.namespace,
                event.name,
                event.node,
                event.model,
                round(at_s * 1000),
                gpus,
                envelope.source,
                envelope.sequence,
            )
        ]

    def held(self) -> list[str]:
        """Returns the ids of grants with slices that are counted now."""
        return list(self._held)

    def end(self, grant_id: str, at_s: float, *, by_node: bool = False) -> list[Record]:
        """A grant's slices are over since then; `by_node`: their node says so."""
        self._held.pop(grant_id, None)
        self._open.pop(grant_id, None)
        self._ended[grant_id] = None
        if len(self._ended) > ENDED_KEPT:
            self._ended.popitem(last=False)
        return [Ended(grant_id, round(at_s * 1000), by_node)]

    def _know(self, namespace: str, name: str, uid: str) -> None:
        self._uids[namespace, name] = uid
        self._uids.move_to_end((namespace, name))
        if len(self._uids) > KNOWN_PODS:
            self._uids.popitem(last=False)

    # --- out --------------------------------------------------------------------------------------------------

    def allocated(self) -> dict[tuple[str, str], tuple[int, int, int]]:
        """By node and model: MiB, milli and slices that are handed over. Of nodes without an inventory together: any
        agent can name any node in an event."""
        found: dict[tuple[str, str], tuple[int, int, int]] = {}
        for containers in self._held.values():
            for held in containers.values():
                for uuid, mib, milli in held.gpus:
                    node = held.node if held.node in self._inventories else "unknown"
                    key = node, self._model.get(uuid, "unknown")
                    memory, compute, slices = found.get(key, (0, 0, 0))
                    found[key] = memory + mib, compute + milli, slices + 1
        return found

    def capacity(self) -> dict[tuple[str, str], tuple[int, int, int]]:
        """By node and model: GPUs, MiB and GPUs that are not healthy."""
        found: dict[tuple[str, str], tuple[int, int, int]] = {}
        for node, inventory in self._inventories.items():
            for gpu in inventory.gpus:
                gpus, memory, unwell = found.get((node, gpu.model), (0, 0, 0))
                found[node, gpu.model] = gpus + 1, memory + gpu.memory_mib, unwell + (gpu.state != "healthy")
        return found

    def _declare(self, metrics: Metrics) -> None:
        self._events = metrics.counter(
            "kerf_events_total", "Public events heard, by type; other: of an unknown type.", ("type",)
        )
        self._outcomes = metrics.counter(
            "kerf_placement_outcomes_total", "Pods decided, rejected and bound.", ("outcome",)
        )
        self._rejections = metrics.counter(
            "kerf_placement_rejections_total", "Rejections by their most frequent reason.", ("code",)
        )
        self._waited = metrics.histogram(
            "kerf_pod_wait_seconds", "From the first sight of a pod to its decision.", buckets=WAITS
        )
        self._bound = metrics.histogram("kerf_pod_bind_seconds", "From a pod's decision to the sight of it bound.")
        self._suspensions = metrics.counter(
            "kerf_suspensions_total",
            "Suspensions of pods, by action, and by whether the pod was idle, ended its turn, or neither.",
            ("action", "why"),
        )
        self._suspended = metrics.histogram(
            "kerf_suspended_seconds",
            "From the order to suspend a pod until it had all back, copies included, by action.",
            ("action",),
            buckets=WAITS,
        )
        self._moves = metrics.counter("kerf_moves_total", "Resumptions on other GPUs of the node.")
        self._recovery = metrics.histogram(
            "kerf_term_recovery_seconds", "How long a new leader took until it decided.", buckets=WAITS
        )
        self._term = metrics.gauge("kerf_term", "The newest term.")
        self._gpu_states = metrics.counter(
            "kerf_gpu_state_changes_total", "GPUs that changed state, by the new one.", ("state",)
        )
        for figures, named in ((self.allocated, _ALLOCATED), (self.capacity, _CAPACITY)):
            for index, shown in enumerate(named):
                metrics.observe_by(
                    shown.name,
                    shown.text,
                    partial(_column, figures, index, shown.unit),
                    labels=("node", "model"),
                    former=shown.before(),
                )
        metrics.observe_by(
            "kerf_status_age_seconds",
            "How long ago placement last gave the figures of nodes, GPUs and pods; since the start, if it has not yet.",
            self._status_age_s,
        )
        for field, shown in _STATUS.items():
            metrics.observe_by(
                shown.name, shown.text, partial(self._of_status, field, shown.unit), former=shown.before()
            )
        for field, shown in _QUEUES.items():
            metrics.observe_by(
                shown.name,
                shown.text,
                partial(self._of_queues, field, shown.unit),
                labels=("queue",),
                former=shown.before(),
            )

    def _of_queues(self, field: str, unit: float) -> dict[tuple[str, ...], float]:
        """Without those of which nothing is said, such as a limit."""
        if not self._is_fresh(self._queues_s):
            return {}
        return {(q.name,): value * unit for q in self.queues if (value := getattr(q, field)) is not None}

    def _of_status(self, field: str, unit: float) -> dict[tuple[str, ...], float]:
        """No sample where placement has not answered: a 0 would mean that all is well."""
        return {(): float(getattr(self.status, field) * unit)} if self._is_fresh(self._status_s) else {}

    def _status_age_s(self) -> float:
        return self._monotonic() - (self._began_s if self._status_s is None else self._status_s)

    def _is_fresh(self, answered_s: float | None) -> bool:
        return answered_s is not None and self._monotonic() - answered_s <= FIGURES_KEPT_S


def _capacity(node: str, at_s: float, gpus: int, models: Iterable[str], by_model: Mapping[str, int]) -> Capacity:
    several = tuple(sorted(by_model.items())) if len(by_model) > 1 else ()
    return Capacity(node, round(at_s * 1000), gpus, ", ".join(models), several)


class Shown(msgspec.Struct, frozen=True):
    """A figure as a metric: `unit` is how much of the metric's unit one of the figure's is."""

    name: str
    text: str
    unit: float = 1
    former: str = ""

    def before(self) -> Former | None:
        return Former(self.former, self.unit) if self.former else None


def _column(
    figures: Callable[[], dict[tuple[str, str], tuple[int, int, int]]], index: int, unit: float
) -> dict[tuple[str, ...], float]:
    return {labels: values[index] * unit for labels, values in figures().items()}


_ALLOCATED = (
    Shown("kerf_node_gpu_memory_allocated_bytes", "GPU memory handed over.", MIB, "kerf_node_gpu_memory_allocated_mib"),
    Shown(
        "kerf_node_gpu_compute_allocated_gpus",
        "GPU compute handed over, in GPUs.",
        MILLI,
        "kerf_node_gpu_compute_allocated_milli",
    ),
    Shown("kerf_node_gpu_slices", "Slices handed over, counted on each of their GPUs."),
)
_CAPACITY = (
    Shown("kerf_node_gpus", "GPUs."),
    Shown("kerf_node_gpu_memory_bytes", "GPU memory.", MIB, "kerf_node_gpu_memory_mib"),
    Shown("kerf_node_gpus_unhealthy", "GPUs that take no new slices."),
)
_US = 1e-6
_STATUS = {
    "nodes": Shown("kerf_nodes", "Nodes that placement knows."),
    "synced_nodes": Shown("kerf_synced_nodes", "Nodes whose agent has answered this term."),
    "agents": Shown("kerf_agents", "Nodes that must have an agent."),
    "agents_ready": Shown("kerf_agents_ready", "Nodes whose agent has answered this term and is not silent."),
    "gpus": Shown("kerf_gpus", "GPUs that placement knows."),
    "gpu_milli_total": Shown("kerf_gpu_compute_gpus", "GPU compute, in GPUs.", MILLI, "kerf_gpu_milli_total"),
    "gpu_milli_allocated": Shown(
        "kerf_gpu_compute_allocated_gpus",
        "GPU compute that is booked to pods, without what is kept for a plan, in GPUs.",
        MILLI,
        "kerf_gpu_milli_allocated",
    ),
    "gpu_memory_mib_total": Shown("kerf_gpu_memory_bytes", "GPU memory.", MIB, "kerf_gpu_memory_mib_total"),
    "gpu_memory_mib_allocated": Shown(
        "kerf_gpu_memory_allocated_bytes",
        "GPU memory that is booked to pods, without what is kept for a plan.",
        MIB,
        "kerf_gpu_memory_mib_allocated",
    ),
    "fragmentation_milli": Shown(
        "kerf_fragmented_gpus",
        "Free GPU compute that no waiting or usual request could take, in GPUs.",
        MILLI,
        "kerf_fragmentation_milli",
    ),
    "pods_bound": Shown("kerf_pods_bound", "Pods bound by Kerf."),
    "pods_holding": Shown("kerf_pods_holding", "Pods decided and not yet seen bound."),
    "pods_waiting": Shown("kerf_pods_waiting", "Pods for which there is no place now."),
    "oldest_wait_s": Shown("kerf_pods_waiting_oldest_seconds", "How long the pod has waited that waits longest."),
    "pods_gated": Shown("kerf_pods_gated", "Pods with scheduling gates."),
    "pods_leaving": Shown("kerf_pods_leaving", "Pods that ended and whose capacity is not released yet."),
    "decide_us_p50": Shown("kerf_decision_p50_seconds", "CPU time of a decision, median.", _US, "kerf_decide_us_p50"),
    "decide_us_p99": Shown(
        "kerf_decision_p99_seconds", "CPU time of a decision, 99th percentile.", _US, "kerf_decide_us_p99"
    ),
    "double_bookings": Shown("kerf_double_bookings", "GPUs booked beyond what they have. Anything but 0 is a fault."),
}
_QUEUES = {
    "gpu_milli_used": Shown(
        "kerf_queue_gpus_used",
        "What a queue has of GPUs with all below it, each share by its larger part.",
        MILLI,
        "kerf_queue_gpu_milli_used",
    ),
    "gpu_milli_guaranteed": Shown(
        "kerf_queue_gpus_guaranteed", "GPUs that a queue is guaranteed.", MILLI, "kerf_queue_gpu_milli_guaranteed"
    ),
    "gpu_milli_limit": Shown(
        "kerf_queue_gpus_limit",
        "GPUs that a queue may have at most; no sample where there is no limit.",
        MILLI,
        "kerf_queue_gpu_milli_limit",
    ),
    "waiting": Shown("kerf_queue_pods_waiting", "Pods that wait in a queue and below it."),
}


def seconds_of(time: str) -> float:
    """A CloudEvent's time as Unix seconds; 0 where it is none."""
    try:
        return datetime.datetime.fromisoformat(time).timestamp()
    except ValueError:
        return 0.0
