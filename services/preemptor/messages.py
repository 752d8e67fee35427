"""What goes into the preemptor's core and what comes out of it."""

from __future__ import annotations

import msgspec

from shared.contracts.commands import Answer, Evict
from shared.contracts.events import Event, GrantEnded, PlacementRejected, PreemptionAbandoned, PreemptionExecuted
from shared.contracts.explain import Advice
from shared.contracts.facts import Fact
from shared.contracts.preemption import Plan, Reserved, Spared
from shared.contracts.queries import AdviseQuery, LeftAlone
from shared.contracts.samples import UsageSample
from shared.model.gpu import Inventory


class Input(msgspec.Struct, frozen=True):
    pass


class SnapshotSeen(Input, frozen=True):
    """Everything there is: what it lacks is gone."""

    facts: tuple[Fact, ...]


class FactsSeen(Input, frozen=True):
    facts: tuple[Fact, ...]


class InventorySeen(Input, frozen=True):
    inventory: Inventory


class AgentLost(Input, frozen=True):
    node: str


class GrantOver(Input, frozen=True):
    """The node has given it back, and placement has booked that."""

    grant_id: str


class Rejected(Input, frozen=True):
    """Placement has found no room for this pod."""

    uid: str


class Answered(Input, frozen=True):
    """Placement's word on a plan; not `ok` with no reason where it did not answer."""

    answer: Reserved


class Evicted(Input, frozen=True):
    """What became of evictions of a plan."""

    plan_id: str
    asked: tuple[str, ...]
    """uids: all of them were taken but those that `answers` names otherwise."""
    answers: tuple[Answer, ...]


class Advised(Input, frozen=True):
    """Placement's advice; None where it had none, or did not answer."""

    advice: Advice | None


class Ended(Input, frozen=True):
    """Placement says that a plan is over: its places are taken, or it was given up."""

    plan_id: str
    executed: bool


class Sampled(Input, frozen=True):
    """What a node's slices use now."""

    sample: UsageSample


class ProtectionRestored(Input, frozen=True):
    """What whoever worked before has written down."""

    spared: Spared


class Tick(Input, frozen=True):
    """Some ten times a second."""

    proposes: bool = True
    """Not where another instance leads."""


class Command(msgspec.Struct, frozen=True):
    pass


class Propose(Command, frozen=True):
    """Say the plan to everybody, and ask placement to reserve."""

    plan: Plan
    event: Event


class Execute(Command, frozen=True):
    plan_id: str
    evictions: tuple[Evict, ...]


class SaveProtection(Command, frozen=True):
    """For whoever works next."""

    spared: Spared
    for_s: float


class CancelPlan(Command, frozen=True):
    plan_id: str
    reason: str


class AskAdvice(Command, frozen=True):
    """Ask placement which moves would make room for this pod, or its gang."""

    namespace: str
    name: str
    most_gpu_seconds: int
    spared_pods: tuple[str, ...] = ()
    """Not to be named, by uid; and by namespace: """
    spared_namespaces: tuple[str, ...] = ()

    @property
    def query(self) -> AdviseQuery:
        spared = LeftAlone(pods=self.spared_pods, namespaces=self.spared_namespaces)
        return AdviseQuery(
            namespace=self.namespace, name=self.name, most_gpu_seconds=self.most_gpu_seconds, for_plan=spared
        )


def heard(event: Event) -> Input | None:
    """What one of placement's public events is to the preemptor; None for those that say nothing to it."""
    match event:
        case PlacementRejected():
            return Rejected(event.uid)
        case GrantEnded():
            return GrantOver(event.grant_id)
        case PreemptionExecuted():
            return Ended(event.plan.plan_id, executed=True)
        case PreemptionAbandoned():
            return Ended(event.plan.plan_id, executed=False)
    return None
