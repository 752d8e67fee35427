"""Who gives way to whom: plans, and what becomes of them.

The preemptor proposes a plan. Placement holds it against its book and reserves, under its term, or refuses. Only then
the preemptor acts; what becomes free is the reservation's alone. The deadline of a plan that comes to nothing gives it
back.
"""

from __future__ import annotations

from typing import Literal

from shared.contracts.base import Message
from shared.model.grant import Grant

Action = Literal["throttle", "pause", "shrink", "move", "checkpoint", "evict"]
"""From gentle to hard. Only the last three give memory back, and evict alone needs nothing of the victim."""


ENDS: tuple[Action, ...] = ("move", "evict")
"""By which a pod ends: through the Eviction API. Whoever moves has a place kept elsewhere for the pod that its
controller makes anew."""


class Victim(Message, frozen=True):
    uid: str
    namespace: str
    name: str
    grant_id: str
    """The grant that it loses; one that it has meanwhile got instead is not meant."""
    action: Action = "evict"
    to: str = ""
    """Where a place is kept for whoever comes in its stead, of a pod that moves."""
    keeps_milli: int = 0
    """Of each GPU, where it is throttled."""
    keeps_mib: int = 0
    """Of each GPU, where it is shrunk."""
    lost_gpu_seconds: int = 0
    """What the action destroys: run time since its start or its last checkpoint, times GPUs, and what a restart
    costs."""
    grace_s: int = 0
    """How long it has to end, where it ends."""


class Beneficiary(Message, frozen=True):
    uid: str
    namespace: str
    name: str
    node: str
    """Where the victims make room for it."""


class Plan(Message, frozen=True):
    """All of its beneficiaries get their places, or none: several are members of one gang."""

    plan_id: str
    beneficiaries: tuple[Beneficiary, ...]
    victims: tuple[Victim, ...]
    deadline_s: int
    """From the reservation on, the grace periods of its victims within it. What is not free by then is given up, and
    untouched victims go on; those who were deleted later, or for longer, are waited for all the same."""
    price_gpu_seconds: int = 0
    consolidates: bool = False
    """Everybody who gives way moves, to a place that is kept for it, so equals may be asked. Else they give way by
    priority, or by what their queues are due."""

    @property
    def gains(self) -> str:
        """For whom, in a word or two."""
        first, others = self.beneficiaries[0], len(self.beneficiaries) - 1
        return f"{first.namespace}/{first.name}" + (f" and {others} more" if others else "")

    def concerns(self) -> dict[str, str]:
        """The namespaces in which somebody gains or gives way, each with the uid of one who does; of one that gains
        first."""
        found: dict[str, str] = {}
        for namespace, uid in (
            *((b.namespace, b.uid) for b in self.beneficiaries),
            *((v.namespace, v.uid) for v in self.victims),
        ):
            found.setdefault(namespace, uid)
        return found


class Alternative(Message, frozen=True):
    """Another way to make room, which was not taken: it asks for something harder, or of more important pods, or costs
    more."""

    nodes: tuple[str, ...]
    """Where those who gain would go."""
    action: Action
    """The hardest that is asked of anybody."""
    victims: int
    price_gpu_seconds: int
    at_least: bool = False
    """It was not worked out: victims and price are what it takes at the least."""


class Reserve(Message, frozen=True):
    plan: Plan


class Reserved(Message, frozen=True):
    """`ok`: it stands in the log, and may be executed. Else nothing was reserved, and `reason` says why."""

    plan_id: str
    ok: bool
    reason: str = ""
    plan: Plan | None = None
    """As it is reserved, where that is not quite what was asked for: of those who were to move some have no place
    elsewhere."""
    under_way: Plan | None = None
    """What is reserved for the same beneficiaries already, and to be executed: whoever asked for it may have
    forgotten."""


class Abandon(Message, frozen=True):
    """The preemptor gives a plan up, because a victim cannot go (a disruption budget, say)."""

    plan_id: str
    reason: str


class Spared(Message, frozen=True):
    """Pods of one owner that have made room, so that those that come in their stead are left alone for a while: kept in
    KV for whoever is preemptor next. Times are seconds since 1970."""

    owner: str
    """The uid of the controller whose pods these are; of a bare pod its own."""
    namespace: str
    since: tuple[float, ...] = ()
    """When the first of each generation ended: of its pods that were there before, of those that came in their stead,
    and so on. Whoever was created after the first is left alone for a while, after the second for twice as long."""
    asked: dict[str, tuple[float, int]] = {}
    """Pods whose eviction was asked for and that had not been seen to end, by uid: since when, and of which
    generation."""
    ended: tuple[float, ...] = ()
    """Evictions of the last hour."""


class PreemptQuery(Message, frozen=True):
    """Who would give way to this pod, or to its gang? Nothing is done."""

    namespace: str
    name: str


class PreemptAnswer(Message, frozen=True):
    plan: Plan | None = None
    """None: nobody would, and `sentence` says why."""
    alternatives: tuple[Alternative, ...] = ()
    """Other ways that the search came by, the cheapest first, two at most."""
    kept: tuple[str, ...] = ()
    """Where nobody would: why pods are left alone whose GPUs would do, such as "7 pods: minimum run time"."""
    sentence: str = ""
    error: str = ""


class HeldPlace(Message, frozen=True):
    """What a reservation keeps for one beneficiary."""

    node: str
    grant: Grant | None = None
