"""Messages about preemption: plans, reservations, outcomes.

The preemptor proposes a plan. Placement checks it against its book and reserves it under its term, or refuses it. Only
then the preemptor acts. Capacity that becomes free belongs to the reservation alone. At the plan's deadline the
reservation is released.
"""

from __future__ import annotations

from typing import Any, Literal

from shared.contracts.base import Message
from shared.model.grant import Grant

Action = Literal["throttle", "pause", "shrink", "move", "checkpoint", "evict"]
"""In order of severity. Only `shrink` and the last three free memory, and only `evict` needs no support by the
victim."""


ENDS: tuple[Action, ...] = ("move", "evict")
"""Actions that end the pod through the Eviction API. For a pod that moves, capacity is reserved elsewhere for its
replacement."""


class Victim(Message, frozen=True):
    uid: str
    namespace: str
    name: str
    grant_id: str
    """The grant that it loses; a grant that it gets later is not affected."""
    action: Action = "evict"
    to: str = ""
    """If the pod moves: the node where capacity is reserved for its replacement."""
    keeps_milli: int = 0
    """What it keeps of each GPU's compute if it is throttled."""
    keeps_mib: int = 0
    """What it keeps of each GPU's memory if it is shrunk."""
    lost_gpu_seconds: int = 0
    """What the action destroys: run time since its start or its last checkpoint, times GPUs, and what a restart
    costs."""
    grace_s: int = 0
    """Its grace period, if it is evicted."""


class Beneficiary(Message, frozen=True):
    uid: str
    namespace: str
    name: str
    node: str
    """The node on which the victims free capacity for it."""
    resumes: bool = False
    """It is suspended there, and gets back what it has given up."""
    gpus: dict[str, str] = {}
    """Of one that resumes on other GPUs of the node: the new GPU by the one that it had. Empty: on its own."""


class HeldPlace(Message, frozen=True):
    """What is reserved for one beneficiary, or for the replacement of one victim that moves."""

    node: str
    grant: Grant | None = None


class Plan(Message, frozen=True):
    """Places all of its beneficiaries or none: if there are several, they are members of one gang."""

    plan_id: str
    beneficiaries: tuple[Beneficiary, ...]
    victims: tuple[Victim, ...]
    deadline_s: int
    """Counted from the reservation on; includes the grace periods of its victims. A plan whose capacity is not free
    by then is cancelled, and victims that were not evicted keep running. Victims that were deleted later, or have a
    longer grace period, are waited for nevertheless."""
    price_gpu_seconds: int = 0
    consolidates: bool = False
    """All victims move to reserved capacity, so pods of equal priority may be victims. Otherwise victims are chosen by
    priority or by the fair shares of queues."""
    turn: bool = False
    """The victims' turn ends (`shared.turns.rules`): they are of equal priority, and all of them are suspended."""

    @property
    def only_evicts(self) -> bool:
        """Whether its beneficiaries are pending and its victims end and go nowhere. Several such plans may be in
        progress on one node."""
        ends = all(victim.action == "evict" for victim in self.victims)
        return ends and not (self.turn or self.consolidates or any(b.resumes for b in self.beneficiaries))

    @property
    def gains(self) -> str:
        """The first beneficiary, and how many more there are."""
        first, others = self.beneficiaries[0], len(self.beneficiaries) - 1
        return f"{first.namespace}/{first.name}" + (f" and {others} more" if others else "")

    def concerns(self) -> dict[str, str]:
        """Returns the namespaces of beneficiaries and victims, each with the uid of one; beneficiaries first."""
        found: dict[str, str] = {}
        for namespace, uid in (
            *((b.namespace, b.uid) for b in self.beneficiaries),
            *((v.namespace, v.uid) for v in self.victims),
        ):
            found.setdefault(namespace, uid)
        return found


class Alternative(Message, frozen=True):
    """An option that was not chosen.

    Its action is more severe, its victims are of higher priority, or it costs more.
    """

    nodes: tuple[str, ...]
    """The nodes of the beneficiaries."""
    action: Action
    """The most severe action."""
    victims: int
    price_gpu_seconds: int
    at_least: bool = False
    """It was not computed in full: victims and price are lower bounds."""


class Reserve(Message, frozen=True):
    plan: Plan


class Reserved(Message, frozen=True):
    """`ok`: the reservation is in the log, and the plan may be executed.

    Otherwise nothing is reserved; see `reason`.
    """

    plan_id: str
    ok: bool
    reason: str = ""
    again: bool = False
    """Nothing was decided: placement has just begun to lead. The same plan may be proposed again."""
    places: dict[str, HeldPlace] = {}
    """By uid, the reserved places of the beneficiaries of a plan that only evicts: what other plans on their nodes have
    to leave."""
    plan: Plan | None = None
    """The reserved plan, if it differs from the proposal: some victims do not fit elsewhere and are evicted, not
    moved."""
    under_way: Plan | None = None
    """The plan that is already reserved for the same beneficiaries, to be executed: its proposer may have lost it."""
    cannot_suspend: tuple[str, ...] = ()
    """By uid, the victims that cannot be suspended as the plan says, by their nodes' rehearsals."""
    cannot_move: tuple[str, ...] = ()
    """By uid, the beneficiaries that resume on their own GPUs alone, by the same."""


class Abandon(Message, frozen=True):
    """The preemptor cancels a plan because a victim cannot be evicted, for example by a disruption budget."""

    plan_id: str
    reason: str


MIGRATIONS = "migrations"
"""The owner in the one record of what migrations have disturbed."""


class Spared(Message, frozen=True):
    """The preempted pods of one owner, whose replacements are protected from preemption for a while. Or, with the owner
    MIGRATIONS, what migrations have disturbed in the last hour.

    Persisted in KV for the next preemptor. Times are seconds since 1970.
    """

    owner: str
    """The uid of the controller of these pods; for a pod without a controller its own uid."""
    namespace: str
    since: tuple[float, ...] = ()
    """When the first pod of each generation ended: of the original pods, of their replacements, and so on. A pod that
    was created after the first time is protected for a while, after the second for twice as long."""
    asked: dict[str, tuple[float, int]] = {}
    """By uid of pods whose eviction was requested and that have not been seen to end: since when, and their
    generation."""
    ended: tuple[float, ...] = ()
    """The times of evictions in the last hour."""
    disturbed: dict[str, tuple[float, int]] = {}
    """Of migrations, by plan: when it was proposed, and what it disturbs, in GPU milliseconds."""


class PreemptQuery(Message, frozen=True):
    """Asks which pods would be preempted for this pod or its gang. Changes nothing."""

    namespace: str = ""
    name: str = ""
    pod: Any = None
    """A manifest that need not exist, instead of a name. Its gang is not asked about."""


class PreemptAnswer(Message, frozen=True):
    plan: Plan | None = None
    """None: no pod would be preempted, and `sentence` says why."""
    alternatives: tuple[Alternative, ...] = ()
    """Options that were not chosen, the cheapest first, at most two."""
    kept: tuple[str, ...] = ()
    """Why pods on suitable GPUs are not preempted, if none is, for example "7 pods: minimum run time"."""
    sentence: str = ""
    error: str = ""
