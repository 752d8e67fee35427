"""The records of KERF_LOG. Placement's leader alone appends, under its term (docs: the protocol's rule R1)."""

from __future__ import annotations

from shared.contracts.base import Message
from shared.contracts.commands import AllocateClaim
from shared.contracts.preemption import HeldPlace, Plan
from shared.model.grant import Grant


class TermRecord(Message, frozen=True):
    """Begins a leader session. Its own sequence in the stream is the term's number."""

    holder: str
    reason: str = ""
    session: str = ""
    """Unlike that of any other session, so that a record of one is never taken for another's."""


class LogMark(Message, frozen=True):
    """The newest record that its leader may have acted on. It lives in the NATS servers' memory, beside the log and not
    in it: a log that lacks this record has lost acknowledged ones, and so may have a log without a mark."""

    term: int
    """0: nothing has been acted on yet, and the log begins after `sequence`."""
    sequence: int
    session: str = ""


class ReadyRecord(Message, frozen=True):
    """From here on the log is complete: every open hold of the past is recorded before this record under its term."""

    term: int
    excluded: dict[str, str] = {}
    """Pods that could not be touched, by uid, with the version at which a Binding of the past may still succeed for
    them. They are not placed before they are seen at another one."""
    more: bool = False
    """Another `ready` record of this term follows with more of them, and the log is complete only there."""
    hear_first: bool = False
    """Nodes may run pods that are pending: the log was begun anew, and not all nodes have been heard since. A successor
    hears them before it places anything."""
    hear_nodes: tuple[str, ...] = ()
    """Nodes that run pods which were pending or gone when they were heard: a successor hears these before it places
    anything. Of one term the last `ready` record counts."""


class Decision(Message, frozen=True):
    """A pod's place. `resource_version` is the version it was decided on, and the only one it can be bound at."""

    uid: str
    namespace: str
    name: str
    resource_version: str
    node: str
    grant: Grant | None = None
    """None for a pod without GPUs."""
    claims: tuple[AllocateClaim, ...] = ()
    """To be written before its Binding."""


class ReservationRecord(Message, frozen=True):
    """A plan that placement has accepted, with the places it keeps; or, `over`, the end of one. Of one plan the last
    counts."""

    term: int
    plan: Plan
    places: dict[str, HeldPlace] = {}
    """By the beneficiary's uid."""
    over: bool = False


class Amendment(Message, frozen=True):
    """A running pod's slices grow: its grant as it will be. `resource_version` is the only version of the pod at which
    the annotation can be written. Smaller amounts are not logged, for the node has promised them before."""

    uid: str
    namespace: str
    name: str
    resource_version: str
    grant: Grant


class DecisionBatch(Message, frozen=True):
    """What was decided in one go. A reservation that is over in here is so after the decisions."""

    term: int
    decisions: tuple[Decision, ...]
    reservations: tuple[ReservationRecord, ...] = ()
    amendments: tuple[Amendment, ...] = ()
