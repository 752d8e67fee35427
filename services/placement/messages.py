"""What goes into placement's core and what comes out of it. Everything else is the shell's business."""

from __future__ import annotations

import msgspec

from shared.contracts.commands import Answer, Bind, Patch
from shared.contracts.events import Event as PublicEvent
from shared.contracts.facts import Fact
from shared.contracts.log import DecisionBatch, LogMark, ReadyRecord, TermRecord
from shared.contracts.node_commands import NodeGrant, NodeRelease, NodeSync, NodeSyncAnswer
from shared.contracts.preemption import Plan, Reserved
from shared.model.gpu import Inventory
from shared.model.suspension import Suspension


class Input(msgspec.Struct, frozen=True):
    pass


class TermTaken(Input, frozen=True):
    """This process holds term `term`. `records`: the whole log before it, in order. `mark`: the newest record that an earlier leader
    may have acted on, as the NATS servers remember it beside the log; None: they remember none."""

    term: int
    records: tuple[tuple[int, TermRecord | DecisionBatch | ReadyRecord], ...] = ()
    mark: LogMark | None = None


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
    """The shell has checked that this node itself has sent it."""

    answer: NodeSyncAnswer


class GrantAcknowledged(Input, frozen=True):
    """`dead`: the node will never hand this grant over."""

    node: str
    grant_id: str
    ok: bool = True
    reason: str = ""
    suspension: Suspension | None = None
    dead: bool = False


class ReleaseSeen(Input, frozen=True):
    node: str
    grant_id: str
    reason: str = ""


class Appended(Input, frozen=True):
    """The append in flight is durable."""

    sequence: int


class BindsAnswered(Input, frozen=True):
    answers: tuple[Answer, ...]


class PatchesAnswered(Input, frozen=True):
    """Patches that did not end well."""

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


class CheckTerm(Command, frozen=True):
    """Somebody speaks of a newer term. The log alone says whether there is one: if so, this session is over."""

    reason: str


class BeginLogAnew(Command, frozen=True):
    """The log has lost acknowledged records. Delete it, so that the next one's sequences are higher than any before (at least
    `first_sequence`), and end this session: the next one begins on an empty log."""

    first_sequence: int
    reason: str
