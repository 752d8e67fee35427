"""Questions and their answers, most of them answered by placement's leader from its book.

Each question is one `Query` at the end of this file (those to metrics: in `metrics_queries.py`), and all are in
`QUERIES`: channel, NATS permissions, schemas and examples follow from it.
"""

from __future__ import annotations

from typing import Any

from shared.contracts.base import Message
from shared.contracts.explain import (
    Advice,
    NodeTypeNeed,
    PodExplanation,
    ScaleExplanation,
    WhenExplanation,
    WorldExplanation,
)
from shared.contracts.metrics_queries import COST, TRACE, USAGE
from shared.contracts.node_commands import NodeGrant
from shared.contracts.preemption import PreemptAnswer, PreemptQuery
from shared.contracts.query import Query


class WhyQuery(Message, frozen=True):
    namespace: str
    name: str
    max_nodes: int = 20


class Resize(Message, frozen=True):
    """An existing pod as if it requested something else."""

    namespace: str
    name: str
    limits: dict[str, str]
    """New limits by resource, such as {"kerf.dev/gpu-memory": "20Gi"}; the others stay."""
    container: str = ""
    """Empty: the one that uses GPUs, or the only one."""


class AddNodes(Message, frozen=True):
    """More nodes like one that exists, empty."""

    like: str
    count: int = 1


class AddGpus(Message, frozen=True):
    """More GPUs in a node, like those that it has."""

    node: str
    count: int


class WhatIfQuery(Message, frozen=True):
    """The result if the cluster were different. Changes are made in the order of the fields, all in one copy of the
    book; then the pod, if one is given, is explained in it. A pod alone: where would it go now, and what excludes
    the other nodes?"""

    pod: Any = None
    """A manifest that need not exist."""
    max_nodes: int = 20
    drain: tuple[str, ...] = ()
    """Nodes that are emptied, or lost: to the pods on them it is the same."""
    add_nodes: tuple[AddNodes, ...] = ()
    add_gpus: tuple[AddGpus, ...] = ()
    resize: tuple[Resize, ...] = ()


class ScaleQuery(Message, frozen=True):
    """How many more nodes of which type would give the waiting pods a place?"""

    max_nodes: int = 64
    """The most nodes of one type that are tried, up to 256."""


class ScaleAnswer(Message, frozen=True):
    scale: ScaleExplanation | None = None
    error: str = ""


class WhenQuery(Message, frozen=True):
    """When could this waiting pod start at the earliest?"""

    namespace: str
    name: str


class WhenAnswer(Message, frozen=True):
    when: WhenExplanation | None = None
    error: str = ""


class LeftAlone(Message, frozen=True):
    """Replacements of evicted pods, which are protected for a while; by uid, and by namespace if it has reached its
    limit of evictions."""

    pods: tuple[str, ...] = ()
    namespaces: tuple[str, ...] = ()


class AdviseQuery(Message, frozen=True):
    """Which pods should migrate to free capacity? For a waiting pod or its gang, for a manifest, or for `groups` more
    groups of `gpus` idle GPUs on one node: one of the three."""

    namespace: str = ""
    name: str = ""
    pod: Any = None
    gpus: int = 0
    groups: int = 1
    most_gpu_seconds: int = 0
    """Advice may disturb so much at most; 0: any."""
    for_plan: LeftAlone | None = None
    """The caller would carry it out: then only pods are named that a controller recreates, that may be evicted now, and
    that no other plan needs where they are."""


class AdviseAnswer(Message, frozen=True):
    advice: Advice | None = None
    error: str = ""


class ExplainAnswer(Message, frozen=True):
    explanation: PodExplanation | None = None
    world: WorldExplanation | None = None
    """Of a what-if that changes more than one pod."""
    error: str = ""
    """Not empty: why there is no answer, and what to do."""


class GrantQuery(Message, frozen=True):
    """Sent by an agent that is given a slot, or a ResourceClaim, whose grant it does not know."""

    uid: str
    """The pod's; "" if `claim` is given."""
    node: str
    claim: str = ""
    """The claim's uid, where the pod's is not known."""


class GrantAnswer(Message, frozen=True):
    found: NodeGrant | None = None
    error: str = ""


class EndedGrantsQuery(Message, frozen=True):
    """Sent by metrics, which counts slices until the event of their grant's end, and may have missed it."""

    grant_ids: tuple[str, ...]
    """At most a few thousand: a message holds 1 MiB."""


class EndedGrantsAnswer(Message, frozen=True):
    grant_ids: tuple[str, ...] = ()
    """Of those, the ones of which the book has nothing: no pod has them, and no node has yet to release them."""
    error: str = ""


class RemotePeersQuery(Message, frozen=True):
    """Sent by an agent that measures the network for GPUs of other nodes."""

    node: str


class RemotePeer(Message, frozen=True):
    node: str
    address: str
    """Where it serves, as "host:port"."""


class RemotePeersAnswer(Message, frozen=True):
    peers: tuple[RemotePeer, ...] = ()
    """The nodes to measure: few of each rack, the same ones each time for one node, and others for another."""
    error: str = ""
    """Not empty: there may be others, and what was measured of these stands."""


class InspectQuery(Message, frozen=True):
    node: str = ""
    """Empty: all."""
    gpu: str = ""
    """The UUID of a GPU instead: its node alone. A placement before 0.2 answers with all nodes."""


class InspectPod(Message, frozen=True):
    namespace: str
    name: str
    memory_mib: int
    compute_milli: int
    state: str
    """holding, bound, leaving; or reserved: it has no place yet, and this one is kept for it."""
    containers: tuple[str, ...] = ()
    suspension: str = ""
    """The action by which it is suspended, such as pause; empty where it is not."""
    parked: str = ""
    """The name of `suspension` before 0.2."""
    memory_limit_mib: int = 0
    """What it may use while no slice is guaranteed it; 0: no more than `memory_mib`."""
    compute_limit_milli: int = 0
    """The same of compute; 0: no more than `compute_milli`."""


class InspectGpu(Message, frozen=True):
    uuid: str
    index: int
    model: str
    state: str
    memory_mib: int
    allocated_memory_mib: int
    allocated_compute_milli: int
    containers: int = 0
    pods: tuple[InspectPod, ...] = ()
    reason: str = ""
    """Why the state is not healthy."""
    foreign_mib: int = 0
    """Memory of processes whose pod got nothing handed over, and of the host's processes."""
    to_device_mb_s: int = 0
    """Measured bandwidth of pinned copies from the host, in MB/s; 0: not measured."""
    from_device_mb_s: int = 0
    """The same to the host."""
    guaranteed_mib: int = 0
    """Of slices that run, or may. With what is paused and what returns it is all that slices have on the device."""
    paused_mib: int = 0
    """Of slices that are paused, which keep it."""
    returning_mib: int = 0
    """Of slices that take back what they had given up."""
    suspended_mib: int = 0
    """Given up for a while by suspended pods: on the host, or not allocated. It comes back when there is room."""
    parked_mib: int = 0
    """The name of `suspended_mib` before 0.2."""
    reserved_mib: int = 0
    """Reserved for pods for which others are preempted. It is not allocated until those have released it."""


class InspectNode(Message, frozen=True):
    node: str
    address: str = ""
    ready: bool = True
    synced: bool = True
    """Whether the node's agent has answered this term's sync; without it nothing new goes there."""
    driver_version: str = ""
    cuda_version: str = ""
    simulated: bool = False
    gpus: tuple[InspectGpu, ...] = ()


class InspectAnswer(Message, frozen=True):
    nodes: tuple[InspectNode, ...] = ()
    changed: bool = False
    """The book changed while it was read: each node is right by itself, and a pod that moved meanwhile may be on two
    nodes or on none."""
    error: str = ""


class SuspendedPod(Message, frozen=True):
    """A pod that has given something up for a while; `kerf why` and `kerf when` tell the rest."""

    namespace: str
    name: str
    node: str
    action: str
    """throttle, pause, shrink or checkpoint."""
    since: str = ""
    """It has stood still since then (RFC 3339, UTC); empty: it runs on with less, or that is not known."""
    for_s: int = 0
    turn_of: str = ""
    """For whose turn, as namespace/name; empty: for none."""
    gpu_seconds: int = 0
    """What it has had, in seconds of a whole GPU."""
    level: int | None = None
    """Its job's, of those that take turns; 0 is served first. None: it takes no turns."""
    idle: bool = False
    """It resumes when one of its programs wants the GPU."""


class StatusQuery(Message, frozen=True):
    waiting: int = 0
    """How many of the oldest waiting pods to explain. Each makes the leader examine every node: ask for few."""
    uids: int = 0
    """How many of the oldest waiting pods to name by their uid, at most 5,000; that costs next to nothing."""
    suspended: int = 0
    """How many of the suspended pods to describe, at most 100; those that have stood still for longest."""


class StatusAnswer(Message, frozen=True):
    """Placement in figures. `double_bookings` counts GPUs whose booked shares exceed them, by the book's own audit."""

    holder: str = ""
    leader: bool = False
    term: int = 0
    nodes: int = 0
    gpus: int = 0
    gpu_milli_total: int = 0
    gpu_milli_allocated: int = 0
    gpu_memory_mib_total: int = 0
    gpu_memory_mib_allocated: int = 0
    pods_bound: int = 0
    pods_holding: int = 0
    pods_waiting: int = 0
    pods_gated: int = 0
    pods_leaving: int = 0
    decisions: int = 0
    rejections: int = 0
    decide_us_p50: float = 0.0
    decide_us_p99: float = 0.0
    fragmentation_milli: int = 0
    """GPU milli that is free and that no waiting or usual request could take."""
    double_bookings: int = 0
    waiting: tuple[PodExplanation, ...] = ()
    """The oldest waiting pods, as many as requested, at most ten, without their nodes."""
    synced_nodes: int = 0
    error: str = ""
    agents: int = 0
    """Nodes that must have an agent: those with label kerf.dev/managed=true (or gpushare's) or kerf.dev/enrolled=true,
    and those with an inventory."""
    agents_ready: int = 0
    """Of these, nodes whose agent has answered this term and is not silent: new pods may go there."""
    oldest_wait_s: float = 0.0
    """How long the pod has waited that waits longest; 0 where none waits."""
    waiting_uids: tuple[str, ...] = ()
    """The oldest waiting pods, as many as requested."""
    pods_suspended: int = 0
    suspended: tuple[SuspendedPod, ...] = ()
    on_host_mib: int = 0
    """GPU memory of suspended pods that is on their hosts, or will be: all that they were granted."""
    host_mib: int = 0
    """What the hosts take of it, together."""


class QueuesQuery(Message, frozen=True):
    pass


class QueueStanding(Message, frozen=True):
    """A queue with all below it: what it has, may have and waits for. None: not set. Shares of GPUs count by the larger
    of their memory part and their compute part, in thousandths of a GPU."""

    name: str
    parent: str = ""
    weight: float = 1
    priority: int = 0
    gpu_milli_used: int = 0
    gpu_milli_guaranteed: int = 0
    gpu_milli_limit: int | None = None
    cpu_milli_used: int = 0
    cpu_milli_guaranteed: int | None = None
    cpu_milli_limit: int | None = None
    memory_bytes_used: int = 0
    memory_bytes_guaranteed: int | None = None
    memory_bytes_limit: int | None = None
    waiting: int = 0
    """Pods."""
    gpu_milli_reserved: int = 0
    """Reserved for its waiting pods while others are preempted for them. Limits count it, and it is not part of what is
    used; nor are the CPU and memory of these pods."""


class QueuesAnswer(Message, frozen=True):
    queues: tuple[QueueStanding, ...] = ()
    """Parents before their children; empty where there are none."""
    invalid: str = ""
    """Why the policy as it is written is not in force: it cannot be read."""
    error: str = ""


class AboutQuery(Message, frozen=True):
    pass


class AboutAnswer(Message, frozen=True):
    """One instance of a service."""

    service: str = ""
    instance: str = ""
    version: str = ""
    now_ms: int = 0
    """Its clock, in milliseconds since 1970."""
    ready: bool = True
    problems: dict[str, str] = {}
    """Its parts that are not well, and why."""
    error: str = ""


WHY = Query(
    name="why",
    question=WhyQuery,
    answer=ExplainAnswer,
    receivers="placement",
    description="Why is this pod where it is, or nowhere?",
    publisher="cli, metrics",
)
WHAT_IF = Query(
    name="what-if",
    question=WhatIfQuery,
    answer=ExplainAnswer,
    receivers="placement",
    description="Where would this pod go, and what would become of the others, now or in a changed cluster?",
    publisher="cli, metrics",
)
WHEN = Query(
    name="when",
    question=WhenQuery,
    answer=WhenAnswer,
    receivers="placement",
    description="When could this waiting pod start at the earliest?",
)
ADVISE = Query(
    name="advise",
    question=AdviseQuery,
    answer=AdviseAnswer,
    receivers="placement",
    description="Which pods should migrate to free capacity?",
    publisher="cli, preemptor",
    examples=(AdviseQuery(gpus=8, groups=2, most_gpu_seconds=36_000),),
)
SCALE = Query(
    name="scale",
    question=ScaleQuery,
    answer=ScaleAnswer,
    receivers="placement",
    description="How many more nodes of which type would give the waiting pods a place?",
    examples=(
        ScaleQuery(max_nodes=32),
        ScaleAnswer(
            scale=ScaleExplanation(
                sentence="12 pods wait for capacity; 2 more nodes of type p5.48xlarge (like gpu-node-17.example, 16 "
                "GPUs) would give all of them a place",
                waiting=12,
                needs=(
                    NodeTypeNeed(
                        name="p5.48xlarge",
                        like="gpu-node-17.example",
                        nodes=2,
                        gpus=16,
                        pods=12,
                        examples=("team-a/train-9",),
                    ),
                ),
            )
        ),
    ),
)
PREEMPT = Query(
    name="preempt",
    question=PreemptQuery,
    answer=PreemptAnswer,
    receivers="preemptor",
    description="Which pods would be preempted for this pod?",
)
INSPECT = Query(
    name="inspect",
    question=InspectQuery,
    answer=InspectAnswer,
    receivers="placement",
    description="Which pod has what on which GPU.",
    publisher="cli, metrics",
)
STATUS = Query(
    name="status",
    question=StatusQuery,
    answer=StatusAnswer,
    receivers="placement",
    description="Placement in figures.",
    publisher="cli, metrics",
    examples=(StatusQuery(),),
)
QUEUES = Query(
    name="queues",
    question=QueuesQuery,
    answer=QueuesAnswer,
    receivers="placement",
    description="What each queue has, may have and waits for.",
    publisher="cli, metrics",
    examples=(
        QueuesQuery(),
        QueuesAnswer(
            queues=(
                QueueStanding(
                    name="research",
                    gpu_milli_used=10_500,
                    gpu_milli_guaranteed=8000,
                    gpu_milli_limit=24_000,
                    cpu_milli_used=96_000,
                    memory_bytes_used=1 << 39,
                    waiting=4,
                ),
                QueueStanding(
                    name="vision",
                    parent="research",
                    weight=2,
                    gpu_milli_used=10_500,
                    gpu_milli_guaranteed=8000,
                    cpu_milli_used=96_000,
                    memory_bytes_used=1 << 39,
                    waiting=4,
                ),
            )
        ),
    ),
)
GRANT = Query(
    name="grant",
    question=GrantQuery,
    answer=GrantAnswer,
    receivers="placement",
    description="The grant of a pod that an agent has not heard of.",
    publisher="node_agent",
)
ENDED_GRANTS = Query(
    name="ended-grants",
    question=EndedGrantsQuery,
    answer=EndedGrantsAnswer,
    receivers="placement",
    description="Which of these grants are over.",
    publisher="metrics",
    examples=(
        EndedGrantsQuery(grant_ids=("19c0f9d3a55-7", "19c0f9d3a55-8")),
        EndedGrantsAnswer(grant_ids=("19c0f9d3a55-7",)),
    ),
)
REMOTE_PEERS = Query(
    name="remote-peers",
    question=RemotePeersQuery,
    answer=RemotePeersAnswer,
    receivers="placement",
    description="The nodes to which an agent measures the network, for GPUs of other nodes.",
    publisher="node_agent",
    examples=(
        RemotePeersQuery(node="cpu-1"),
        RemotePeersAnswer(peers=(RemotePeer(node="gpu-1", address="10.0.0.11:14834"),)),
    ),
)
ABOUT = Query(
    name="about",
    question=AboutQuery,
    answer=AboutAnswer,
    receivers="every service",
    description="Which services are connected, of which version, how they are, and what their clocks say.",
    examples=(
        AboutQuery(),
        AboutAnswer(service="placement", instance="kerf-placement-0-1a2b3c", version="0.2.0", now_ms=1_795_000_000_000),
    ),
)

QUERIES: tuple[Query, ...] = (
    WHY,
    WHAT_IF,
    WHEN,
    ADVISE,
    SCALE,
    PREEMPT,
    INSPECT,
    STATUS,
    QUEUES,
    GRANT,
    ENDED_GRANTS,
    REMOTE_PEERS,
    USAGE,
    COST,
    TRACE,
    ABOUT,
)
