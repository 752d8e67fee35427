"""Why a pod is where it is, or nowhere: the same structure in events, queries, conditions and the CLI."""

from __future__ import annotations

from shared.contracts.base import Message


class Reason(Message, frozen=True):
    """One filter's refusal. `code` is stable; `sentence` is for people; `helps` says what would change it."""

    code: str
    sentence: str
    helps: str = ""
    nodes: int = 1
    """How many nodes it speaks for where reasons are summed up."""
    lacking: int = 0
    """How much is missing, in the unit of the thing that is; 0 where there is no amount. Less is nearer to fitting."""


class GpuReason(Message, frozen=True):
    """One GPU against one request: what is free, what is missing, which pods use it."""

    uuid: str
    index: int
    model: str
    free_memory_mib: int
    free_compute_milli: int
    fits: bool
    missing: str = ""
    """For people: "needs 8192 MiB, 2048 MiB free"."""
    holders: tuple[str, ...] = ()
    """namespace/name of the pods on it, largest first, at most five."""
    kept_for: tuple[str, ...] = ()
    """Pods for which a plan reserves capacity on it, largest first, at most five."""


class NodeExplanation(Message, frozen=True):
    node: str
    feasible: bool
    reasons: tuple[Reason, ...] = ()
    gpus: tuple[GpuReason, ...] = ()
    scores: dict[str, int] = {}
    total: int = 0


class StrategyChoice(Message, frozen=True, kw_only=True):
    """How a container's strategy was chosen, for a pod for which placement weighs what sharing slows down."""

    container: str
    strategy: str
    promise: str
    slowdown: float
    """How many times as long it is expected to take as on a GPU of its own."""
    beside: int = 0
    """Containers that it shares the GPU with."""
    worst_beside: float = 1.0
    """The largest slowdown that is expected of these."""
    lost_milli: int = 0
    """The progress that all on the GPU lose by it, in thousandths of a container that runs alone."""
    rule: str = ""
    second: str = ""
    """What came next, with its numbers."""


class Candidate(Message, frozen=True):
    """A node that could take the pod, best first."""

    node: str
    total: int
    scores: dict[str, int] = {}
    terms: dict[str, int] = {}
    """The terms of the policy's score, in milli-GPU; less is worse for later pods."""


class SubgroupExplanation(Message, frozen=True):
    """A part of a gang with a minimum of its own, such as the workers of a Ray cluster."""

    name: str
    minimum: int
    members: int
    """Pods of it that count, as in the gang."""
    placed: int


class GangExplanation(Message, frozen=True):
    """A gang: pods that are placed all or none."""

    name: str
    minimum: int
    members: int
    """Pods of it that count: they want a place, have one, or get one from another scheduler."""
    placed: int
    need: int
    """How many of those that wait must get a place together."""
    fits: int = 0
    """How many of these would get one now."""
    area: str = ""
    """The topology domain that came nearest, such as topology.kubernetes.io/rack=r1; empty: all nodes."""
    misfit: str = ""
    """The first pod that finds no place beside the others."""
    subgroups: tuple[SubgroupExplanation, ...] = ()


class Move(Message, frozen=True):
    """A pod that leaves one node for another. Its new place was found beside all the other moves that it is named
    with."""

    namespace: str
    name: str
    source: str
    target: str
    gpu_milli: int = 0
    """What it has of GPUs."""
    disturbed_gpu_seconds: int = 0
    """What moving it costs: its GPUs times the run time so far, or times kerf.dev/restart-cost if it has that."""


class Counterfactual(Message, frozen=True):
    """A change after which the pod would fit. It was tried before it is suggested."""

    code: str
    """less-memory, less-compute, fewer-gpus, gpu-model, isolation, topology, move-pod, …: stable, for programs"""
    sentence: str
    """For people: "fits with 2048 MiB less GPU memory"."""
    node: str
    """Where it would fit."""
    moves: tuple[Move, ...] = ()
    """Other pods that would have to move first."""


class QueueExplanation(Message, frozen=True):
    """The queue of a pod: the GPU capacity that its pods have, each share by the larger of its memory part and its
    compute part."""

    name: str
    gpu_milli_used: int
    gpu_milli_guaranteed: int
    gpu_milli_limit: int | None = None
    """None: there is no limit."""
    borrows: bool = False
    """It has more than its guarantee."""
    owed: int = 0
    """Where it borrows: how many queues wait that have less than their guarantee."""


class ResizeExplanation(Message, frozen=True):
    """How the resize of a running pod stands. `phase`: done, applying, waiting, refused."""

    wanted: str
    """The annotation that it is about."""
    phase: str
    sentence: str
    code: str = ""
    """Of a refusal, for programs."""


class PodExplanation(Message, frozen=True):
    """`state`: unknown, gated, waiting, holding, bound, leaving, refused, would-fit, would-wait."""

    namespace: str
    name: str
    state: str
    sentence: str
    """The summary in one sentence; the Event and the PodScheduled condition carry it."""
    uid: str = ""
    node: str = ""
    summary: tuple[Reason, ...] = ()
    """Reasons summed over nodes, most frequent first."""
    helps: tuple[str, ...] = ()
    """What would make it fit, the smallest change first. Changes of the pod and migrations of others were tried; advice
    about nodes, agents and volumes was not."""
    counterfactuals: tuple[Counterfactual, ...] = ()
    """Those of `helps` that were tried, for programs."""
    nodes: tuple[NodeExplanation, ...] = ()
    """Per node and per GPU, nearest to fitting first; cut at the query's limit."""
    candidates: tuple[Candidate, ...] = ()
    """The best nodes by the present book; for a placed pod as if it were placed again now."""
    second: str = ""
    """For a placed pod: the node that comes next to its own, and why it is worse, were the pod placed again now. The
    book has changed since the decision, so another node may even come before its own by now."""
    waiting_s: float = 0.0
    ahead: int = 0
    """Pods that are tried before it."""
    gang: GangExplanation | None = None
    """Of a pod that waits for its gang, or with it."""
    queue: QueueExplanation | None = None
    """Of a pod that waits, where there are queues."""
    resize: ResizeExplanation | None = None
    """Of a running pod whose slices were to be resized under this leader."""


class PlacedPod(Message, frozen=True):
    namespace: str
    name: str
    node: str = ""
    """Where it is, or would be; empty: nowhere."""
    sentence: str = ""
    """Why nowhere."""


class WorldExplanation(Message, frozen=True):
    """The cluster after a change that was only tried."""

    sentence: str
    moves: tuple[Move, ...] = ()
    """Pods that would have to move, and where they would find a place beside each other."""
    stranded: tuple[PlacedPod, ...] = ()
    """Pods that would have to move and would find none."""
    fits: tuple[PlacedPod, ...] = ()
    """Waiting pods that would get a place then, and do not now."""
    waiting: int = 0
    """Pods that would still wait, the stranded ones included."""


class NodeTypeNeed(Message, frozen=True):
    """What more nodes of one type would do for the waiting pods."""

    name: str
    """The instance type, or the GPUs of a node without that label: 8 x NVIDIA-H200."""
    like: str
    """A node of that type; the new ones are like it."""
    nodes: int
    """The fewest with which as many pods fit as with the most that were tried."""
    gpus: int
    """GPUs of these nodes."""
    pods: int
    """Waiting pods that would get a place then, and do not now."""
    examples: tuple[str, ...] = ()
    """Some of them, as namespace/name."""


class ScaleExplanation(Message, frozen=True):
    sentence: str
    waiting: int
    """Pods that wait for capacity."""
    kept: int = 0
    """Pods that wait for their queue's quota, which no node would help."""
    needs: tuple[NodeTypeNeed, ...] = ()
    """The type first that helps most pods, of equal ones that with the fewest GPUs. Each by itself."""


class KnownEnd(Message, frozen=True):
    """A pod that ends at a known time."""

    namespace: str
    name: str
    node: str
    in_s: int
    by: str
    """deletion (it is deleted, and its grace period runs), deadline (activeDeadlineSeconds) or expected
    (kerf.dev/expected-duration)"""


class TurnStanding(Message, frozen=True):
    """How the job of a pod that takes turns stands: the pod, or its gang as a whole."""

    waits: bool
    """Whether it waits for its turn: it is pending or suspended."""
    suspended: bool
    since: str
    """It has run, or waited, since then (RFC 3339, UTC)."""
    for_s: int
    gpu_seconds: int
    """What the pod has had, in seconds of a whole GPU."""
    job_gpu_seconds: int
    """What counts for the level: of all pods of the job, since it was last lifted to level 0."""
    level: int
    """0 is served first."""
    overdue: bool = False
    """It has waited for longer than `max_wait_s`, and goes before all levels."""
    turns: int = 0
    """How often the pod was suspended for another job's turn."""
    turn_of: str = ""
    """For whose turn it is suspended, as namespace/name; empty: for none, or that is not known."""
    before: int = 0
    """Waiting jobs that are served before it."""
    within_s: int = 0
    """Its next turn comes within so many seconds, if ending turns makes room for it; if it is idle, from the moment at
    which it wants the GPU."""
    idle: bool = False
    """None of its programs uses the GPU. If it runs, its turn ends for any other job; if it is suspended, it stays so
    until one of them wants the GPU, or `max_wait_s` have passed."""
    watchdog_s: int = 0
    """It is suspended for so long at most at a time, because its watchdog ends it then; 0: no bound."""


class ReservedCapacity(Message, frozen=True):
    """What is kept free for a pod or gang at the head of the queue, until it starts there or elsewhere."""

    nodes: tuple[str, ...]
    gpu_milli: int
    """GPU milli that are reserved, in use or not."""
    idle_gpu_milli: int
    """The part of them that is free already."""
    since_s: int
    """For how long capacity has been reserved for it."""
    awaits: int
    """How many pods have to end there before it fits."""


class WhenExplanation(Message, frozen=True):
    """The earliest time at which a waiting pod could start. `state`: now, known, unknown; or turn: it is suspended, and
    the time is the latest at which its next turn comes: of an idle pod `in_s` runs from when it wants the GPU."""

    namespace: str
    name: str
    state: str
    sentence: str
    in_s: int = 0
    at: str = ""
    """The same as a time (RFC 3339, UTC), by the answering machine's clock."""
    node: str = ""
    counts_on: tuple[KnownEnd, ...] = ()
    """The ends without which it would not fit there then, in order of time."""
    assumptions: tuple[str, ...] = ()
    without_end: int = 0
    """Pods with GPUs whose end is unknown."""
    turn: TurnStanding | None = None
    """None: it takes no turns."""
    reserved: ReservedCapacity | None = None
    """Of a pod or gang at the head of the queue; None: nothing is reserved for it."""


class AdvisedPlace(Message, frozen=True):
    """Where a pod that waits would go when all the moves have been made."""

    namespace: str
    name: str
    node: str


class Advice(Message, frozen=True):
    """Migrations that free capacity, least disturbance first. Nothing is migrated."""

    sentence: str
    moves: tuple[Move, ...] = ()
    node: str = ""
    """Where the one requested pod would go then; empty for a gang, and for a number of GPUs."""
    places: tuple[AdvisedPlace, ...] = ()
    """The same of that pod, or of as many of its gang as must be placed together. Empty where no moves would do."""
    places_before: int = 0
    """For a number of GPUs: how many groups of so many idle GPUs on one node there are now."""
    places_after: int = 0
    disturbed_gpu_seconds: int = 0
    kept: tuple[str, ...] = ()
    """Why pods were left alone, such as "7 pods: gang"."""
