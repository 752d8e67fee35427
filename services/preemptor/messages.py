"""The inputs and commands of the preemptor's core."""

from __future__ import annotations

import msgspec

from shared.contracts.commands import Answer, Evict, ResizePod
from shared.contracts.events import Event, GrantEnded, PlacementRejected, PreemptionAbandoned, PreemptionExecuted
from shared.contracts.explain import Advice
from shared.contracts.facts import Fact
from shared.contracts.preemption import Plan, Reserved, Spared
from shared.contracts.queries import AdviseQuery, LeftAlone
from shared.contracts.samples import UsageSample
from shared.model.causes import Caused
from shared.model.gpu import Inventory


class Input(msgspec.Struct, frozen=True):
    pass


class SnapshotSeen(Input, frozen=True):
    """All objects: what it does not contain is gone."""

    facts: tuple[Fact, ...]


class FactsSeen(Input, frozen=True):
    facts: tuple[Fact, ...]


class InventorySeen(Input, frozen=True):
    inventory: Inventory


class AgentLost(Input, frozen=True):
    node: str


class GrantOver(Input, frozen=True):
    """The node has released the grant, and placement has booked that."""

    grant_id: str


class Rejected(Input, frozen=True):
    """Placement found no node on which this pod fits."""

    uid: str


class Answered(Input, frozen=True):
    """Placement's answer to a plan; not `ok` without a reason if it did not answer."""

    answer: Reserved


class Evicted(Input, frozen=True):
    """The outcome of evictions of a plan."""

    plan_id: str
    asked: tuple[str, ...]
    """uids: all of them were accepted but those that `answers` names otherwise."""
    answers: tuple[Answer, ...]


class Advised(Input, frozen=True):
    """Placement's advice; None if it had none, or did not answer."""

    advice: Advice | None


class Ended(Input, frozen=True):
    """Placement says that a plan is over: its beneficiaries are placed, or it was cancelled."""

    plan_id: str
    executed: bool
    failed: tuple[str, ...] = ()
    """The uids of victims that could not be suspended, if they are the reason and are known."""


class Sampled(Input, frozen=True):
    """What the slices of a node use now."""

    sample: UsageSample


class ProtectionRestored(Input, frozen=True):
    """A protection record that was persisted, by this or another instance."""

    record: Spared


class Tick(Input, frozen=True):
    """About ten times a second."""

    proposes: bool = True
    """False if another instance leads."""


class Command(Caused, frozen=True):
    """What the shell is to do. `cause` is the number of the input that it follows from."""


class Propose(Command, frozen=True):
    """Publish the plan, and ask placement to reserve it."""

    plan: Plan
    event: Event


class ProposeAgain(Command, frozen=True):
    """Ask placement again to reserve a plan that it has not answered."""

    plan: Plan


class Execute(Command, frozen=True):
    plan_id: str
    evictions: tuple[Evict, ...]


class SaveProtection(Command, frozen=True):
    """Persist a protection record for the next leader, for `for_s` seconds."""

    record: Spared
    for_s: float


class CancelPlan(Command, frozen=True):
    plan_id: str
    reason: str


class AskAdvice(Command, frozen=True):
    """Ask placement which migrations would let this pod, or its gang, fit."""

    namespace: str
    name: str
    most_gpu_seconds: int
    protected_pods: tuple[str, ...] = ()
    """Pods that the advice must not name, by uid; and by namespace: """
    exempt_namespaces: tuple[str, ...] = ()

    @property
    def query(self) -> AdviseQuery:
        protected = LeftAlone(pods=self.protected_pods, namespaces=self.exempt_namespaces)
        return AdviseQuery(
            namespace=self.namespace, name=self.name, most_gpu_seconds=self.most_gpu_seconds, for_plan=protected
        )


class Resize(Command, frozen=True):
    """Write what a pod's slices shall have by their use."""

    order: ResizePod


def to_input(event: Event) -> Input | None:
    """Returns the input that one of placement's public events is to the preemptor.

    None for irrelevant ones.
    """
    match event:
        case PlacementRejected():
            return Rejected(event.uid)
        case GrantEnded():
            return GrantOver(event.grant_id)
        case PreemptionExecuted():
            return Ended(event.plan.plan_id, executed=True)
        case PreemptionAbandoned():
            return Ended(event.plan.plan_id, executed=False, failed=event.failed)
    return None
