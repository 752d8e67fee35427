"""What goes into placement's core and what comes out of it. Everything else is the shell's business."""

from __future__ import annotations

import msgspec

from shared.contracts.commands import Answer, Bind, Patch
from shared.contracts.events import Event as PublicEvent
from shared.contracts.facts import Fact
from shared.contracts.log import DecisionBatch, ReadyRecord
from shared.contracts.node_commands import NodeGrant, NodeRelease, NodeSync, NodeSyncAnswer
from shared.contracts.preemption import Plan, Reserved
from shared.model.gpu import Inventory
from shared.model.parked import Parked


class Input(msgspec.Struct, frozen=True):
    pass


class TermTaken(Input, frozen=True):
    """This process holds term `term`. `records`: the whole log before it, in order."""

    term: int
    records: tuple[tuple[int, DecisionBatch | ReadyRecord], ...] = ()


class TermRenewed(Input, frozen=True):
    """The same leader took another term (R5: at least every 6 hours, so that open holds never age out of the log)."""

    term: int


class SnapshotSeen(Input, frozen=True):
    """Everything there is, listed after `TakeSnapshot` was said: what it lacks is gone."""

    facts: tuple[Fact, ...]
    log_sequence_seen: int = 0


class FactsSeen(Input, frozen=True):
    facts: tuple[Fact, ...]


class InventorySeen(Input, frozen=True):
    inventory: Inventory


class AgentLost(Input, frozen=True):
    """The agent took its inventory back for good."""

    node: str


class BeatSeen(Input, frozen=True):
    nodes: tuple[str, ...]


class SyncAnswered(Input, frozen=True):
    answer: NodeSyncAnswer


class GrantAcknowledged(Input, frozen=True):
    node: str
    grant_id: str
    ok: bool = True
    reason: str = ""
    parked: Parked | None = None


class ReleaseSeen(Input, frozen=True):
    node: str
    grant_id: str
    reason: str = ""


class Appended(Input, frozen=True):
    """The append in flight is durable."""

    sequence: int


class BindsAnswered(Input, frozen=True):
    answers: tuple[Answer, ...]


class ReserveAsked(Input, frozen=True):
    """The preemptor proposes this plan; asked again it is the same question."""

    plan: Plan


class AbandonAsked(Input, frozen=True):
    plan_id: str
    reason: str


class Tick(Input, frozen=True):
    """Comes about ten times a second, and at once after `Again`."""


class Wake(Input, frozen=True):
    """What `Later` asked for."""


class Command(msgspec.Struct, frozen=True):
    pass


class Append(Command, frozen=True):
    """Append to the log under the term. At most one is in flight: the next comes after its `Appended`."""

    record: DecisionBatch | ReadyRecord


class AnswerPlan(Command, frozen=True):
    """To whoever asked for this plan."""

    answer: Reserved


class TakeSnapshot(Command, frozen=True):
    """A fresh one: a bound pod that a lagging list still lacks would be capacity that is given away a second time."""


class SendBinds(Command, frozen=True):
    sequence: int
    binds: tuple[Bind, ...]


class SendPatches(Command, frozen=True):
    patches: tuple[Patch, ...]


class SendGrant(Command, frozen=True):
    node: str
    grant: NodeGrant


class SendRelease(Command, frozen=True):
    node: str
    release: NodeRelease


class SendSync(Command, frozen=True):
    sync: NodeSync


class SendReleasesSeen(Command, frozen=True):
    node: str
    grant_ids: tuple[str, ...]


class Publish(Command, frozen=True):
    """A public event. `namespace` or `node` makes the subject's end. `uid` names the pod's trace, or the gang's."""

    event: PublicEvent
    namespace: str = ""
    node: str = ""
    uid: str = ""


class Again(Command, frozen=True):
    """There is more to decide; come back at once after serving the bus."""


class Later(Command, frozen=True):
    """A batch gathers; come back after so many seconds."""

    seconds: float


class StepDown(Command, frozen=True):
    """This process must not go on as leader; everything in memory is void."""

    reason: str
