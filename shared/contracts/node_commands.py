"""Commands to a node's agent, and its answers. Repeating any of them is harmless."""

from __future__ import annotations

from typing import Literal

import msgspec

from shared.contracts.base import Message
from shared.model.gpu import checked
from shared.model.grant import GpuShare, Grant
from shared.model.strategies import StrategyName
from shared.model.suspension import Suspension
from shared.model.turn_terms import TurnTerms


class RemoteEnd(Message, frozen=True):
    """What this node is for a grant of strategy `remote`, whose pod is on one node and whose GPU on another."""

    role: Literal["client", "serving"]
    """client: the pod's node, which gives its container the means to reach the GPU. serving: the GPU's node, which
    runs a server for it; its word alone returns the GPU."""
    peer: str
    """The other node."""
    address: str = ""
    """For the client: where the GPU is served, as "host:port"."""


class NodeGrant(Message, frozen=True):
    """A grant that is now true: its pod was seen bound to this node. Or, in a sync, one that placement knows."""

    term: int
    uid: str
    namespace: str
    name: str
    grant: Grant
    suspension: Suspension | None = msgspec.field(name="parked", default=None)
    """What its pod has to give up for now. The answer says whether it has."""
    number: int = 0
    """Rises with each order of a term. An agent that has met a later order about a grant does not go back to an earlier
    one."""
    unbound: bool = False
    """In a sync: the grant is decided, and its pod has not been seen bound yet. It must not be forgotten, and nothing
    may be started by it."""
    remote: RemoteEnd | None = None
    """None: the GPUs are of the pod's own node."""
    shrink: Grant | None = None
    """The next amendment of the grant, with smaller amounts: the node is to promise that it uses no more than those
    while the grant is as it is."""
    turns: TurnTerms | None = None
    """What the node has to know of a pod that may be suspended for another one's turn; None: nothing special."""


class NodeRelease(Message, frozen=True):
    """The pod is gone or has ended: never hand this grant over again, and publish `slice.released` when nothing of it
    runs."""

    term: int
    uid: str
    grant_id: str


class NodeSync(Message, frozen=True):
    """All grants that placement knows on this node, once a term. The agent refuses terms older than one it has met, and
    passes over a sync with a lower number than one it has met in the same term. From then on it hands over no grant of
    an earlier term that is not named here."""

    term: int
    node: str
    grants: tuple[NodeGrant, ...] = ()
    number: int = 0
    """Counts with the numbers of grants: what the agent learned by a later order than this one is not in here, and
    stays. 0: from a placement before 0.2, which does not count; such a sync buries grants of earlier terms only."""


class LiveSlice(Message, frozen=True):
    """A container's part that may be running: handed over, and not yet seen to have ended."""

    uid: str
    namespace: str
    name: str
    container: str
    grant_id: str
    strategy: StrategyName
    gpus: dict[str, tuple[int, int]] = {}
    """GPU uuid to (memory_mib, compute_milli)."""
    nics: tuple[str, ...] = ()
    """The network cards of its grant, by their names on the node."""
    mig: tuple[GpuShare, ...] = ()
    """Its MIG instances, as granted: `gpus` does not say which slices of a GPU they take."""
    remote: RemoteEnd | None = None
    """A server for a container of another node, or (in the agent alone) a container that uses another node's GPU."""

    @property
    def is_client(self) -> bool:
        return self.remote is not None and self.remote.role == "client"

    def __post_init__(self) -> None:
        for mib, milli in self.gpus.values():
            checked("memory_mib", mib)
            checked("compute_milli", milli)


class NodeSyncAnswer(Message, frozen=True):
    """`accepted` False: the term is old; the agent follows `term`. Live slices that were not in the sync are still
    occupied; every other grant that the agent once knew is tombstoned."""

    node: str
    boot_id: str
    term: int
    accepted: bool
    number: int = 0
    """The sync's."""
    live: tuple[LiveSlice, ...] = ()
    tombstones: tuple[str, ...] = ()
    """Grants of the sync that were given back for good already."""
    suspension: dict[str, Suspension] = msgspec.field(name="parked", default_factory=dict)
    """Grants of the sync whose slices have given something up, and what."""
    resizes: bool = False
    """Whether the agent can resize running slices. One of an earlier version passes over what it does not know."""
    amendments: dict[str, int] = {}
    """Grants of the sync that were amended, and the newest amendment whose amounts their slices have."""
    amended: dict[str, Grant] = {}
    """Grants of the sync of which the node has an amendment that the sync does not know, because etcd was restored: the
    amounts that their slices have, or are to have. They may be those of the sync, by a later number."""
    shrunk: dict[str, Grant] = {}
    """Grants of the sync of which the node has promised to use less, and what it uses at most."""
    on_host: tuple[str, ...] = ()
    """Grants of the sync whose GPU memory is on the host, or may be."""
    cannot_checkpoint: dict[str, str] = {}
    """Grants of the sync whose programs cannot be checkpointed, by the node's rehearsal, and why."""
    cannot_move: dict[str, str] = {}
    """Grants of the sync (`any_gpu`) whose programs come back to their own GPUs alone, by the node's rehearsal, and
    why."""


MOST_HOLD_S = 60.0


class NodeHold(Message, frozen=True):
    """Before the members of a gang are checkpointed: the node stops all processes of these pods together, tries once,
    and holds them until they are checkpointed, or for `hold_s`. Nothing is given up by it. If a node of the gang cannot
    do it, the others are told 0, and all are asked again a moment later."""

    term: int
    node: str
    grant_ids: tuple[str, ...]
    hold_s: float
    """0: they go on."""

    def __post_init__(self) -> None:
        if not 0 <= self.hold_s <= MOST_HOLD_S:
            raise ValueError(f"hold_s is {self.hold_s}; it must be between 0 and {MOST_HOLD_S:g}")


class NodeHoldAnswer(Message, frozen=True):
    """`ok`: all processes of these pods stand still, or go on, as asked. Otherwise they go on; `reason` says why."""

    node: str
    ok: bool
    reason: str = ""


class NodeCordon(Message, frozen=True):
    """A GPU, or all of them, takes no new slices, or takes them again. A repetition changes nothing and returns the
    remaining pods."""

    node: str
    gpu: str = ""
    """Its UUID; empty: every GPU of the node."""
    undo: bool = False
    """Taken back, a GPU that is held back until a reset is believed to have had it."""
    by: str = ""
    reason: str = ""


class CordonedPod(Message, frozen=True):
    """A pod that has a part of a GPU which was named. `running`: something was handed over and has not been seen to
    end."""

    uid: str
    namespace: str
    name: str
    running: bool


class NodeCordonAnswer(Message, frozen=True):
    ok: bool
    reason: str = ""
    """Why not."""
    gpus: tuple[str, ...] = ()
    """Those that were meant, by UUID."""
    pods: tuple[CordonedPod, ...] = ()


class ReleasesSeen(Message, frozen=True):
    """Placement has booked these releases; the agent stops repeating them."""

    grant_ids: tuple[str, ...]


class Accepted(Message, frozen=True):
    """Yes or no to a command on a node. `reason` says why not."""

    ok: bool
    reason: str = ""
    term: int = 0
    node: str = ""
    grant_id: str = ""
    """The grant it answers for, where there is one."""
    suspension: Suspension | None = msgspec.field(name="parked", default=None)
    """What its slices have given up now, as the command named it. None with a `reason` if they cannot."""
    dead: bool = False
    """The node will never hand this grant over: it has released it, or has closed the term that the grant is from."""
    amendment: int = -1
    """The newest amendment whose amounts its slices have. -1: an agent that does not resize."""
    shrunk: Grant | None = None
    """Until the grant is amended, its slices use no more than this. The promise is on the node's disk."""
    cannot_checkpoint: str = ""
    """Why the pod's programs cannot be checkpointed, by the node's rehearsal; empty: they can, or it is not known."""
    cannot_move: str = ""
    """Why they can come back to their own GPUs alone; empty: to others too, or it is not known."""
    not_resized: str = ""
    """Why the slices do not have the amounts of the grant yet, or do not promise those of `shrink`."""
    number: int = 0
    """The number of the newest order about the grant that the agent has met."""
    whole: bool = False
    """By that order none of its GPU memory is to be on the host, and none is. False: that is not known."""


class Released(Message, frozen=True):
    """A promise: this node will never hand this grant over again, and nothing of it runs. Repeated until placement has
    booked it. The event slice.released tells listeners the same; placement relies on this message, whose subject
    names the node: a node's message about another node's grant does not count."""

    grant_id: str
    reason: str = ""


# The message keeps its old name: it is the name of a published schema, and of the subject.
class Beat(Message, frozen=True):
    """A heartbeat from the agents of these nodes, about every 2 s; the agent of a real node names only itself."""

    nodes: tuple[str, ...]
