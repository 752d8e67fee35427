"""Public events: what happened, for any permitted listener. Each travels as the `data` of a CloudEvent (`envelope.py`).

`ENTITY` and `VERB` make the subject: kerf.v1.event.<entity>.<verb>.ns.<namespace> or ….node.<node>.
"""

from __future__ import annotations

from typing import ClassVar

from shared.contracts.base import Message
from shared.contracts.explain import GangExplanation, PodExplanation, ScaleExplanation, StrategyChoice
from shared.contracts.preemption import Alternative, Plan
from shared.model.gpu import MOST_GPUS, MOST_MIB, checked
from shared.model.grant import Grant
from shared.model.strategies import StrategyName
from shared.model.strategy import Isolation
from shared.model.suspension import SuspendAction


class Event(Message, frozen=True):
    ENTITY: ClassVar[str] = ""
    VERB: ClassVar[str] = ""


class PlacementDecided(Event, frozen=True):
    """A pod has its place, and the log has it; the Binding goes out now."""

    ENTITY: ClassVar[str] = "placement"
    VERB: ClassVar[str] = "decided"
    uid: str
    namespace: str
    name: str
    node: str
    term: int
    sequence: int
    grant: Grant | None = None
    policy: str = ""
    scores: dict[str, int] = {}
    """What each score gave the chosen node."""
    feasible_nodes: int = 0
    waited_ms: int = 0
    """From the first sight of the pod to the decision."""
    gang: str = ""
    """The gang that it was decided with; its other members are in the same log record."""
    labels: dict[str, str] = {}
    """Of the pod, those that placement's setting `usage_labels` names: usage is told by them."""
    choice: tuple[StrategyChoice, ...] = ()
    """How the strategy of each container was chosen; empty unless the pod declares its use or a largest slowdown."""


class PlacementRejected(Event, frozen=True):
    """No place now. Published when the reason changes, not each time it is tried."""

    ENTITY: ClassVar[str] = "placement"
    VERB: ClassVar[str] = "rejected"
    uid: str
    namespace: str
    name: str
    explanation: PodExplanation


class GangPlaced(Event, frozen=True):
    """As many members of a gang as it needs have their places, in one log record."""

    ENTITY: ClassVar[str] = "gang"
    VERB: ClassVar[str] = "placed"
    namespace: str
    name: str
    pods: tuple[str, ...]
    """Names of the members that were decided together."""
    nodes: int
    """On how many nodes."""
    minimum: int
    term: int
    sequence: int
    area: str = ""
    """The topology domain it was kept to, such as topology.kubernetes.io/rack=r1; empty: none."""
    waited_ms: int = 0
    """From the first sight of its oldest member to the decision."""


class GangWaiting(Event, frozen=True):
    """A gang has no places now. Published when the reason changes, not each time it is tried."""

    ENTITY: ClassVar[str] = "gang"
    VERB: ClassVar[str] = "waiting"
    namespace: str
    name: str
    sentence: str
    gang: GangExplanation


class PolicyRead(Event, frozen=True):
    """The queues were read from ConfigMap kerf-policy: they are in force, or they cannot be, and those of before
    stay."""

    ENTITY: ClassVar[str] = "policy"
    VERB: ClassVar[str] = "read"
    namespace: str
    name: str
    accepted: bool
    queues: int = 0
    """How many are in force now."""
    problem: str = ""
    """Why it is not accepted."""


class PodBound(Event, frozen=True):
    """The API server has the Binding: pod and grant are true."""

    ENTITY: ClassVar[str] = "pod"
    VERB: ClassVar[str] = "bound"
    uid: str
    namespace: str
    name: str
    node: str
    grant_id: str = ""
    created: str = ""
    """The pod's creationTimestamp."""
    bound_ms: int = 0
    """From the decision to the sight of the bound pod."""


class PodSuspended(Event, frozen=True):
    """A pod has given up part of what it has, for a while: its node has said so. Each new leader says it again."""

    ENTITY: ClassVar[str] = "pod"
    VERB: ClassVar[str] = "suspended"
    uid: str
    namespace: str
    name: str
    node: str
    grant_id: str
    action: SuspendAction
    plan_id: str = ""
    turn_of: str = ""
    """For whose turn, as namespace/name and how many more; empty: for none."""
    gpu_seconds: int = 0
    """What a pod that stands still has had until then, in seconds of a whole GPU."""
    idle: bool = False
    """It was not using its GPU."""


class PodResumed(Event, frozen=True):
    """A pod has back all that it was granted, and its GPU memory: its node has said so."""

    ENTITY: ClassVar[str] = "pod"
    VERB: ClassVar[str] = "resumed"
    uid: str
    namespace: str
    name: str
    node: str
    grant_id: str
    action: SuspendAction
    """What it had been."""
    suspended_ms: int = 0
    """From the order to suspend it until now, copies included."""
    moved: bool = False
    """It is on other GPUs of its node than before."""


class GrantEnded(Event, frozen=True):
    """The capacity of a grant is back in the pool."""

    ENTITY: ClassVar[str] = "grant"
    VERB: ClassVar[str] = "ended"
    uid: str
    namespace: str
    name: str
    node: str
    grant_id: str
    reason: str = ""


class CapacityWanted(Event, frozen=True):
    """Pods wait for capacity: more nodes of which type would give how many of them a place, tried on a copy of the
    book. Published when that changes, and with `waiting` 0 when no pod waits any more, under the name of the leader's
    instance."""

    ENTITY: ClassVar[str] = "capacity"
    VERB: ClassVar[str] = "wanted"
    scale: ScaleExplanation


class TermTaken(Event, frozen=True):
    """A placement leader begins its session. Published per node name of its holder."""

    ENTITY: ClassVar[str] = "term"
    VERB: ClassVar[str] = "taken"
    term: int
    holder: str
    touched: int = 0
    """Pending pods that were touched because the log was not complete."""
    excluded: int = 0
    """Of these, pods that could not be touched: they are not placed until an update of them succeeds."""
    readopted: int = 0
    seconds: float = 0.0


class NodeInventoried(Event, frozen=True):
    """A node's agent has published what the node has."""

    ENTITY: ClassVar[str] = "node"
    VERB: ClassVar[str] = "inventoried"
    node: str
    gpus: int
    memory_mib: int
    models: tuple[str, ...] = ()
    unhealthy: int = 0
    generation: int = 0
    problem: str = ""
    """Why no GPU is known, where none is."""
    gpus_by_model: dict[str, int] = {}
    """How many of each model. Empty: an agent of an earlier Kerf."""

    def __post_init__(self) -> None:
        checked("gpus", self.gpus, MOST_GPUS)
        checked("memory_mib", self.memory_mib, MOST_GPUS * MOST_MIB)
        for model, gpus in self.gpus_by_model.items():
            checked(f"gpus_by_model[{model[:80]!r}]", gpus, MOST_GPUS)


class SliceEnforced(Event, frozen=True):
    """A container's slice is handed over; or it has something else than before: it was resized, suspended, resumed or
    moved; or it is as it was, and the node's agent has started again. `promise` is what the strategy in force can keep.
    """

    ENTITY: ClassVar[str] = "slice"
    VERB: ClassVar[str] = "enforced"
    node: str
    uid: str
    namespace: str
    name: str
    container: str
    grant_id: str
    strategy: StrategyName
    promise: Isolation
    gpus: dict[str, tuple[int, int]] = {}
    """GPU uuid to (memory_mib, compute_milli): what it has from now on. Without GPUs its memory is on the host."""
    model: str = ""
    traceparent: str = ""
    shares_faults: bool = False
    """Whether a fatal fault of another container on the GPU can end the GPU work of this one (MPS)."""

    def __post_init__(self) -> None:
        for memory_mib, compute_milli in self.gpus.values():
            checked("memory_mib", memory_mib)
            checked("compute_milli", compute_milli)


class SliceImpaired(Event, frozen=True):
    """A container's slice stands, but its programs have lost the GPU and must start again; or, by the reason
    cannot-checkpoint, they cannot be moved off it and back; or, by cannot-move, not to another one."""

    ENTITY: ClassVar[str] = "slice"
    VERB: ClassVar[str] = "impaired"
    node: str
    uid: str
    namespace: str
    name: str
    container: str
    gpu: str
    """The GPU's uuid."""
    reason: str
    """A code, such as mps-fault or cannot-checkpoint."""
    sentence: str


class SliceReleased(Event, frozen=True):
    """A promise: this grant will never be handed over again on this node, and nothing of it runs."""

    ENTITY: ClassVar[str] = "slice"
    VERB: ClassVar[str] = "released"
    node: str
    uid: str
    namespace: str
    name: str
    grant_id: str
    boot_id: str
    reason: str = ""


class GpuStateChanged(Event, frozen=True):
    """A GPU takes slices again, or takes none any more, and why."""

    ENTITY: ClassVar[str] = "gpu"
    VERB: ClassVar[str] = "changed"
    node: str
    uuid: str
    state: str
    reason: str = ""


class PreemptionProposed(Event, frozen=True):
    """Which pods should be preempted for which pods, and the price; nothing has happened yet."""

    ENTITY: ClassVar[str] = "preemption"
    VERB: ClassVar[str] = "proposed"
    plan: Plan
    alternatives: tuple[Alternative, ...] = ()
    """Other ways that the search came by, the cheapest first, two at most; none of moves among equals."""


class PreemptionReserved(Event, frozen=True):
    """Placement has reserved places for the beneficiaries; the plan may be executed. Like all events of a plan it is
    published once under each namespace of a beneficiary or victim."""

    ENTITY: ClassVar[str] = "preemption"
    VERB: ClassVar[str] = "reserved"
    plan: Plan
    term: int


class PreemptionExecuted(Event, frozen=True):
    """The victims have released their capacity, and the beneficiaries have their places."""

    ENTITY: ClassVar[str] = "preemption"
    VERB: ClassVar[str] = "executed"
    plan: Plan
    took_ms: int = 0
    """From the reservation to the decision."""


class PreemptionAbandoned(Event, frozen=True):
    """The reservation is over and its beneficiaries have no place by it. Victims that were not touched go on."""

    ENTITY: ClassVar[str] = "preemption"
    VERB: ClassVar[str] = "abandoned"
    plan: Plan
    reason: str
    failed: tuple[str, ...] = ()
    """The uids of victims that could not be suspended, or not by the deadline, if that is the reason."""


EVENTS: tuple[type[Event], ...] = (
    PlacementDecided,
    PlacementRejected,
    PodSuspended,
    PodResumed,
    CapacityWanted,
    PodBound,
    GrantEnded,
    TermTaken,
    NodeInventoried,
    SliceEnforced,
    SliceImpaired,
    SliceReleased,
    GpuStateChanged,
    GangPlaced,
    GangWaiting,
    PolicyRead,
    PreemptionProposed,
    PreemptionReserved,
    PreemptionExecuted,
    PreemptionAbandoned,
)
