"""The book's entries: nodes, pods, grants."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Literal

import msgspec

from shared.book.cpus import CpusBeside
from shared.book.demand import MOST, Demand, demand_of
from shared.book.mig import MigRoom
from shared.book.shares import GpuRoom
from shared.formats import UNREADABLE
from shared.model import names
from shared.model.affinity import PodAffinity, TopologySpreadConstraint
from shared.model.claims import ResourceClaim, claim_asks, claim_path
from shared.model.gang import GangRef, read_gang
from shared.model.gpu import Gpu, Inventory
from shared.model.grant import Grant, decode_grant, serving_node
from shared.model.kube_object import OwnerReference
from shared.model.life import UNTOLD, Life, read_life
from shared.model.mig import geometry_of
from shared.model.objects import Node, Pod
from shared.model.pod_resize import resizing
from shared.model.request import PodRequest, RequestError
from shared.model.request_reader import read_request
from shared.model.state_machine import Transitions
from shared.model.strategies import MIG
from shared.model.suspension import Suspension, annotated_suspension, decode_suspension
from shared.model.units import WHOLE_GPU_MILLI, QuantityError, milli, whole
from shared.model.use import UseProfile
from shared.printable import shortened
from shared.turns.gpu_time import GpuTime, read_gpu_time

GrantPhase = Literal["holding", "bound", "leaving", "reserved"]
"""reserved: for a pod that has no place yet; the capacity booked under it may still be in use by another pod."""
GRANT_PHASES = Transitions[GrantPhase](
    {
        "holding": ("bound", "leaving"),  # the pod was seen bound with it, or has ended meanwhile
        "bound": ("leaving",),  # the pod has ended or is gone; the node has not released the grant
        "leaving": (),
        "reserved": (),
    }
)

ENDED_PHASES = ("Succeeded", "Failed")
UNANSWERED = "its agent has not answered this leader yet"
"""Why no GPU of a node may be given before a new leader knows what runs there."""


class PodState(msgspec.Struct):
    """A pod as the book sees it. `charged`: the node whose capacity it uses, empty if none."""

    pod: Pod
    uid: str
    demand: Demand
    request: PodRequest | None
    refusal: str = ""
    """Why this pod can never be placed as it is written; empty when it makes sense."""
    refusal_code: str = ""
    charged: str = ""
    grant_id: str = ""
    seen_bound: bool = False
    """Its Binding has been seen, and reported."""
    returned: str = ""
    """A grant of this pod that the node has given back for good: its annotation counts no more."""
    claims: dict[str, str] = {}
    """Its ResourceClaims: namespace/name of the object by the name in the pod; empty while there is none."""
    gang: GangRef | None = None
    """The gang that it must be placed with; None: it is placed by itself."""
    life: Life = UNTOLD
    takes_turns: bool = False
    """Whether it agrees to be suspended for another pod's turn, by its annotation or its queue."""
    suspension: Suspension | None = None
    """What it has to give up for now, by its annotation; that it has is for its node to say."""
    gpu_time: GpuTime | None = None
    """The GPU time that it has had, as of its last suspension or resumption; None: it has had neither."""
    excluded: str = ""
    """Why it cannot be touched. A Binding of the past may still succeed for it, with a void grant: it is not placed
    until it is seen at another version."""
    runs_on: str = ""
    """For a pending pod: a node on which its containers still run by an earlier grant, because etcd was restored from a
    backup of before its Binding. It is not placed until that node has released the grant."""
    uses: dict[str, UseProfile] = {}
    """What its containers do on a GPU, by container: declared, or learned of earlier pods of its owner."""
    adaptive: bool = False
    """Placement weighs for it, and by it, what sharing a GPU slows down."""
    network_milli: int = 1000
    """The slowdown by the network with which it was given a GPU of another node."""
    kept_for: str = ""
    """For a placeholder on a node with a reservation: the uid of the pod that the place is reserved for."""

    @property
    def key(self) -> str:
        return f"{self.pod.metadata.namespace}/{self.pod.metadata.name}"

    @property
    def controller(self) -> OwnerReference | None:
        """What makes another such pod; None for a bare one."""
        return next((owner for owner in self.pod.metadata.owner_references if owner.controller), None)

    @property
    def controller_uid(self) -> str:
        """Empty for a bare pod."""
        return "" if self.controller is None else self.controller.uid

    def placeholder(self, uid: str) -> PodState:
        """Its placeholder where a place is reserved: it requests the same, and is not a pod of the book."""
        return PodState(
            pod=self.pod,
            uid=uid,
            demand=self.demand,
            request=self.request,
            uses=self.uses,
            adaptive=self.adaptive,
            life=self.life,
            takes_turns=self.takes_turns,
            kept_for=self.uid,
        )

    @property
    def ours(self) -> bool:
        return self.pod.spec.scheduler_name == names.SCHEDULER_NAME

    @property
    def attracted(self) -> bool:
        """Whether it can only be placed near certain other pods, by required affinity."""
        affinity = self.pod.spec.affinity
        return affinity is not None and _requires(affinity.pod_affinity)

    @property
    def awaits_pods(self) -> bool:
        """Whether it may wait for a pod to come to a node, or to change there: by required affinity, or by a spread
        that must hold."""
        return self.attracted or bool(self.spread)

    @property
    def spread(self) -> list[TopologySpreadConstraint]:
        """How it must be spread."""
        return [c for c in self.pod.spec.topology_spread_constraints if c.when_unsatisfiable == "DoNotSchedule"]

    @property
    def repels(self) -> bool:
        """Whether it keeps other pods away by required anti-affinity."""
        affinity = self.pod.spec.affinity
        return affinity is not None and _requires(affinity.pod_anti_affinity)

    @property
    def repels_in(self) -> str:
        """The namespace in which it keeps pods away; empty if its terms name namespaces."""
        affinity = self.pod.spec.affinity
        against = None if affinity is None else affinity.pod_anti_affinity
        terms = () if against is None else against.required_during_scheduling_ignored_during_execution
        return "" if any(term.names_namespaces for term in terms) else self.pod.metadata.namespace

    @property
    def ended(self) -> bool:
        return self.pod.status.phase in ENDED_PHASES

    @property
    def wants_place(self) -> bool:
        """Unbound, alive, not gated, and Kerf's to place."""
        pod = self.pod
        return (
            self.ours
            and not pod.spec.node_name
            and pod.metadata.deletion_timestamp is None
            and not self.ended
            and not pod.spec.scheduling_gates
        )

    @property
    def never_preempts(self) -> bool:
        """No pod may be preempted for it, whatever its priority."""
        return self.pod.spec.preemption_policy == "Never"


class GrantState(msgspec.Struct):
    """A grant whose shares are taken from the pool. It outlives its pod until the node releases it."""

    grant: Grant
    uid: str
    namespace: str
    name: str
    node: str
    """The node of its GPUs, whose word returns them; also that of its pod, unless `client` names another."""
    phase: GrantPhase
    whole: Grant | None = None
    """Of a suspended pod: the grant as it was given. `grant` is what it takes now."""
    suspension: Suspension | None = None
    parked: bool = False
    """Its GPU memory is on the host, or may be, or is ordered to be (`host_memory`)."""
    client: str = ""
    """Of a grant on GPUs of another node: the node of its pod."""
    noted: Grant | None = None
    """Of a pod that may be growing: the grant by its annotation. `grant` is the larger one that is booked."""
    shrink: Grant | None = None
    """Smaller amounts that its node is asked to promise."""
    uses: dict[str, UseProfile] = {}
    """What its containers do on GPUs, as far as that is known."""
    max_slowdown_milli: int = 0
    """What its pod accepts of slowdown; 0: any."""
    network_milli: int = 1000

    def enter(self, phase: GrantPhase) -> None:
        self.phase = GRANT_PHASES.move(self.phase, phase)

    @property
    def given(self) -> Grant:
        """As its annotation has it, suspended or growing or neither."""
        return self.noted or self.whole or self.grant

    @property
    def grant_id(self) -> str:
        return self.grant.grant_id

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes whose agents know it, that of its GPUs first."""
        return (self.node, self.client) if self.client else (self.node,)


def grant_state(grant: Grant, pod: PodState, pod_node: str, phase: GrantPhase) -> GrantState:
    """The entry of a pod's grant; the pod is, or is to be, on `pod_node`."""
    serving, meta = serving_node(grant), pod.pod.metadata
    client = pod_node if serving not in ("", pod_node) else ""
    held = GrantState(grant, pod.uid, meta.namespace, meta.name, serving or pod_node, phase, client=client)
    held.network_milli = pod.network_milli if client else 1000
    held.uses, held.max_slowdown_milli = pod.uses, 0 if pod.request is None else pod.request.max_slowdown_milli
    return held


class NodeState:
    """A node: its Kubernetes object, its agent's inventory, and what is taken."""

    def __init__(self, name: str, row: int) -> None:
        self.name = name
        self.row = row
        self.object: Node | None = None
        self.inventory: Inventory | None = None
        self.agent_trouble = UNANSWERED
        """Why no GPU of this node may be given now, whatever their state; empty when they may."""
        self.gpus: list[GpuRoom] = []
        self.by_uuid: dict[str, GpuRoom] = {}
        self.pods: dict[str, PodState] = {}
        self.grants: dict[str, GrantState] = {}
        """On its GPUs."""
        self.clients: dict[str, GrantState] = {}
        """On GPUs of other nodes, of pods that are here."""
        self.cpus = CpusBeside()
        self.stamp = 0
        """Another number whenever the Node object, the inventory or the agent's state changed, never one used before,
        even by another node in the same row: what node filters depend on."""
        self.cpu_used = self.memory_used = self.ephemeral_used = 0
        self.extended_used: dict[str, int] = {}
        self.extended_total: dict[str, int] = {}
        self.cpu_total = self.memory_total = self.ephemeral_total = self.pods_total = 0

    def read_capacity(self) -> None:
        allocatable = {} if self.object is None else self.object.status.allocatable
        self.cpu_total = _offered(milli, allocatable.get("cpu", 0))
        self.memory_total = _offered(whole, allocatable.get("memory", 0))
        self.ephemeral_total = _offered(whole, allocatable.get("ephemeral-storage", 0))
        self.pods_total = _offered(whole, allocatable.get("pods", 0))
        self.extended_total = {
            name: _offered(whole, amount)
            for name, amount in allocatable.items()
            if name not in ("cpu", "memory", "ephemeral-storage", "pods")
        }

    def add_room(self, demand: Demand, sign: int) -> None:
        self.cpu_used += sign * demand.cpu_milli
        self.memory_used += sign * demand.memory_bytes
        self.ephemeral_used += sign * demand.ephemeral_bytes
        for name, amount in demand.extended:
            self.extended_used[name] = self.extended_used.get(name, 0) + sign * amount


def _requires(affinity: PodAffinity | None) -> bool:
    return affinity is not None and bool(affinity.required_during_scheduling_ignored_during_execution)


def _offered(read: Callable[[str | int], int], amount: str | int) -> int:
    """What a node offers of something. Nonsense offers nothing: one bad node must not stop the feed."""
    try:
        return max(0, min(MOST, read(amount)))
    except QuantityError:
        return 0


def room_of(gpu: Gpu, column: int, node: NodeState) -> GpuRoom:
    """A GPU of a node with nothing on it."""
    trouble = node.agent_trouble or ("" if gpu.state == "healthy" else f"GPU is {gpu.state}: {gpu.reason}".rstrip(": "))
    free_mib, free_milli = gpu.memory_mib - gpu.foreign_mib, WHOLE_GPU_MILLI
    mig = None
    if gpu.mig_enabled:
        geometry = geometry_of(gpu.model, gpu.memory_mib)
        if geometry is None:
            trouble = (
                trouble or f"GPU is in MIG mode, and how a {gpu.model} of {gpu.memory_mib} MiB can be cut is not known"
            )
        elif node.inventory is None or MIG not in node.inventory.strategies:
            trouble = trouble or "GPU is in MIG mode, and the node's agent hands out no MIG instances"
        else:
            mig = MigRoom(geometry, gpu.mig_on_demand, gpu.mig_instances)
            free_mib, free_milli = mig.capacity(gpu.memory_mib)
    return GpuRoom(
        gpu.uuid, column, gpu.index, gpu.model, gpu.memory_mib, free_mib, free_milli, 0, not trouble, trouble, mig
    )


def pod_state(pod: Pod, claims: Mapping[str, ResourceClaim] = MappingProxyType({})) -> PodState:
    """Reads a pod once. Nonsense in it is kept as a refusal, never raised: one bad pod must not stop the feed.
    `claims`: all ResourceClaims, by namespace/name."""
    request, refusal, code = None, "", ""
    demand = Demand()
    gang, bad_gang = _gang_of(pod)
    life, bad_life = _life_of(pod)
    try:
        demand = demand_of(pod)
        request = read_request(pod, claim_asks(pod, claims))
        if (wrong := bad_gang or bad_life) is not None:
            raise wrong
    except RequestError as error:
        refusal, code = shortened(str(error)), error.code
    except QuantityError as error:
        refusal, code = shortened(str(error)), "not-a-quantity"
    names_of = {claim.name: claim_path(pod, claim) for claim in pod.spec.resource_claims}
    return PodState(
        pod=pod,
        uid=pod.metadata.uid,
        demand=demand,
        request=request,
        refusal=refusal,
        refusal_code=code,
        claims=names_of,
        gang=gang,
        life=life,
        takes_turns=life.turns == "allowed",
        suspension=_suspension_of(pod),
        gpu_time=read_gpu_time(pod.metadata.annotations),
        uses={} if request is None or request.use is None else dict.fromkeys(request.asks, request.use),
        adaptive=request is not None and (request.use is not None or request.max_slowdown_milli > 0),
    )


def _gang_of(pod: Pod) -> tuple[GangRef | None, RequestError | None]:
    """The pod's gang, and what is wrong with its annotations. A pod that is refused for something else still counts
    in its gang: of one that has ended, the ResourceClaim made from a template is gone."""
    try:
        return read_gang(pod), None
    except RequestError as error:
        return None, error


def _life_of(pod: Pod) -> tuple[Life, RequestError | None]:
    """The pod's life, and what is wrong with its annotations. A pod that is refused can still be evicted: what it says
    of preemption counts, for it was placed by that."""
    try:
        return read_life(pod), None
    except RequestError as error:
        return Life(preemptible=pod.metadata.annotations.get(names.ANNOTATION_PREEMPTIBLE) != "false"), error


def is_read_alike(one: Pod, other: Pod) -> bool:
    """Whether `pod_state` reads the same of both, as far as no ResourceClaim is named: of all that a Binding writes,
    it reads nothing."""
    mine, its = one.spec, other.spec
    return (
        mine.containers == its.containers
        and mine.init_containers == its.init_containers
        and mine.resources == its.resources
        and mine.overhead == its.overhead
        and mine.scheduling_group == its.scheduling_group
        and mine.workload_ref == its.workload_ref
        and mine.affinity == its.affinity
        and resizing(one) == resizing(other)
        and one.metadata.labels == other.metadata.labels
        and one.metadata.owner_references == other.metadata.owner_references
        and _annotations_read(one) == _annotations_read(other)
    )


def _annotations_read(pod: Pod) -> dict[str, str]:
    notes = pod.metadata.annotations
    if names.ANNOTATION_GRANT not in notes:
        return notes
    return {key: value for key, value in notes.items() if key != names.ANNOTATION_GRANT}


def state_like(read: PodState, pod: Pod) -> PodState:
    """What `pod_state` reads of a pod without ResourceClaims that reads like the pod of `read`, which is as it was
    read."""
    return msgspec.structs.replace(read, pod=pod, uid=pod.metadata.uid, uses=dict(read.uses))


def _suspension_of(pod: Pod) -> Suspension | None:
    """Only Kerf writes it. An annotation that cannot be read is from a later Kerf, and suspends nothing."""
    text = annotated_suspension(pod.metadata.annotations)
    try:
        return decode_suspension(text) if text else None
    except UNREADABLE:
        return None


def grant_of(pod: Pod) -> tuple[Grant | None, str]:
    """The grant a pod carries, and what is wrong with it where it cannot be read."""
    text = pod.metadata.annotations.get(names.ANNOTATION_GRANT)
    if text is None:
        return None, ""
    try:
        return decode_grant(text), ""
    except UNREADABLE as error:
        return None, f"the annotation {names.ANNOTATION_GRANT} is no grant: {error}"
