"""The records of KERF_LOG. Placement's leader alone appends, under its term (docs: the protocol's rule R1)."""

from __future__ import annotations

from shared.contracts.base import Message
from shared.contracts.commands import AllocateClaim
from shared.contracts.preemption import HeldPlace, Plan
from shared.model.grant import Grant


class TermRecord(Message, frozen=True):
    """Begins a reign. Its own sequence in the stream is the term's number."""

    holder: str
    reason: str = ""


class ReadyRecord(Message, frozen=True):
    """From here on the log is complete: every open hold of the past stands before this record under its term."""

    term: int


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
    """A plan that placement has accepted, with the places it keeps; or, `over`, the end of one. Of one plan the last counts."""

    term: int
    plan: Plan
    places: dict[str, HeldPlace] = {}
    """By the beneficiary's uid."""
    over: bool = False


class DecisionBatch(Message, frozen=True):
    """What was decided in one go. A reservation that is over in here is so after the decisions."""

    term: int
    decisions: tuple[Decision, ...]
    reservations: tuple[ReservationRecord, ...] = ()
