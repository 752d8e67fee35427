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
    """One GPU against one request: what is free, what is missing, who holds it."""

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


class NodeExplanation(Message, frozen=True):
    node: str
    feasible: bool
    reasons: tuple[Reason, ...] = ()
    gpus: tuple[GpuReason, ...] = ()
    scores: dict[str, int] = {}
    total: int = 0


class Candidate(Message, frozen=True):
    """A node that could take the pod, best first."""

    node: str
    total: int
    scores: dict[str, int] = {}
    terms: dict[str, int] = {}
    """What the policy's score is made of, in milli-GPU by term; less is worse for those who come later."""


class GangExplanation(Message, frozen=True):
    """A gang as it stands: pods that are placed all or none."""

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


class PodExplanation(Message, frozen=True):
    """`state`: unknown, gated, waiting, holding, bound, leaving, refused, would-fit, would-wait."""

    namespace: str
    name: str
    state: str
    sentence: str
    """One sentence that says it all; the Event and the PodScheduled condition carry it."""
    uid: str = ""
    node: str = ""
    summary: tuple[Reason, ...] = ()
    """Reasons summed over nodes, most frequent first."""
    helps: tuple[str, ...] = ()
    """What would make it fit, the least change first."""
    nodes: tuple[NodeExplanation, ...] = ()
    """Per node and per GPU, nearest to fitting first; cut at the query's limit."""
    candidates: tuple[Candidate, ...] = ()
    waiting_s: float = 0.0
    ahead: int = 0
    """Pods that are tried before it."""
    gang: GangExplanation | None = None
    """Of a pod that waits for its gang, or with it."""
