"""The inputs and commands of placement's core. Everything else is the shell's business."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from shared.contracts.commands import Answer, Bind, Patch
from shared.contracts.events import Event as PublicEvent
from shared.contracts.facts import Fact
from shared.contracts.log import DecisionBatch, LogMark, ReadyRecord, TermRecord
from shared.contracts.node_commands import NodeGrant, NodeHold, NodeRelease, NodeSync, NodeSyncAnswer
from shared.contracts.preemption import Plan, Reserved
from shared.contracts.samples import UsageSample
from shared.model.causes import Caused
from shared.model.gpu import Inventory
from shared.model.grant import Grant
from shared.model.suspension import Suspension


class Input(msgspec.Struct, frozen=True):
    pass


class TermTaken(Input, frozen=True):
    """This process holds term `term`. `records`: the whole log before it, in order. `mark`: the newest record that an
    earlier leader may have acted on, as the NATS servers remember it outside the log; None if they remember none."""

    term: int
    records: tuple[tuple[int, TermRecord | DecisionBatch | ReadyRecord], ...] = ()
    mark: LogMark | None = None


class TermRenewed(Input, frozen=True):
    """The same leader took another term (R5: at least every 6 hours, so that open holds never age out of the log)."""

    term: int


class SnapshotSeen(Input, frozen=True):
    """All objects, listed after `TakeSnapshot` was sent: an object that it lacks is gone."""

    facts: tuple[Fact, ...]
    log_sequence_seen: int = 0


class SnapshotPart(Input, frozen=True):
    """Objects of the snapshot that follows whole. A new session books it part by part: while an input is handled its
    process renews no lease, and to read 100,000 pods takes longer than the lease lasts."""

    facts: tuple[Fact, ...]


def parts_of(facts: tuple[Fact, ...], size: int = 50) -> Iterator[SnapshotPart]:
    return (SnapshotPart(facts[i : i + size]) for i in range(0, len(facts), size))


class FactsSeen(Input, frozen=True):
    facts: tuple[Fact, ...]


class InventorySeen(Input, frozen=True):
    inventory: Inventory


class AgentLost(Input, frozen=True):
    """The agent has withdrawn its inventory for good."""

    node: str


class BeatSeen(Input, frozen=True):
    nodes: tuple[str, ...]


class SyncAnswered(Input, frozen=True):
    """The shell has verified that this node itself sent it."""

    answer: NodeSyncAnswer


class GrantAcknowledged(Input, frozen=True):
    """`dead`: the node will never hand this grant over. Not `ok`: the order itself was refused, such as one of an
    earlier term; `ok` with a reason: the slices cannot do it."""

    node: str
    grant_id: str
    ok: bool = True
    reason: str = ""
    suspension: Suspension | None = None
    dead: bool = False
    amendment: int = -1
    """The newest amendment whose amounts the slices have; -1: the agent does not resize."""
    shrunk: Grant | None = None
    not_resized: str = ""
    number: int = 0
    """That of the newest order about this grant that the agent has met."""
    whole: bool = False
    """By that order it gives nothing up, and all of its GPU memory is on the GPU."""
    cannot_checkpoint: str = ""
    cannot_move: str = ""


class HoldAnswered(Input, frozen=True):
    """What a node says to `SendHold`; not `ok` also if it has said nothing."""

    plan_id: str
    gang: str
    attempt: int
    node: str
    ok: bool
    reason: str = ""


class ReleaseSeen(Input, frozen=True):
    node: str
    grant_id: str
    reason: str = ""


class Sampled(Input, frozen=True):
    """What is used on a node's GPUs, as its agent has measured."""

    sample: UsageSample


class Appended(Input, frozen=True):
    """The append under way is durable."""

    sequence: int


class BindsAnswered(Input, frozen=True):
    answers: tuple[Answer, ...]


class PatchesAnswered(Input, frozen=True):
    """Patches that did not succeed."""

    answers: tuple[Answer, ...]


class TouchesNotSent(Input, frozen=True):
    """No watcher runs, so the touches of these pods, by uid, were certainly not carried out."""

    uids: tuple[str, ...]


class ReserveAsked(Input, frozen=True):
    """The preemptor proposes this plan. A repetition is the same request."""

    plan: Plan


class AbandonAsked(Input, frozen=True):
    plan_id: str
    reason: str


class Tick(Input, frozen=True):
    """Sent about ten times a second, and at once after `Again`."""

    unix_s: float | None = None
    """Seconds since 1970; None: not said."""


class Wake(Input, frozen=True):
    """Sent when the time that `Later` named has passed."""


class Command(Caused, frozen=True):
    """What the shell is to do. `cause` is the number of the input that it follows from."""


class Append(Command, frozen=True):
    """Appends to the log under the term. At most one append is under way: the next follows its `Appended`."""

    record: DecisionBatch | ReadyRecord


class AnswerPlan(Command, frozen=True):
    """To the sender of this plan."""

    answer: Reserved


class TakeSnapshot(Command, frozen=True):
    """A fresh list: if a stale one lacked a bound pod, its capacity would be given away a second time."""


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


class SendHold(Command, frozen=True):
    """To the node that it names; `HoldAnswered` says what came of it, if it asks the node to hold something."""

    plan_id: str
    gang: str
    attempt: int
    hold: NodeHold


class SendReleasesSeen(Command, frozen=True):
    node: str
    grant_ids: tuple[str, ...]


class Publish(Command, frozen=True):
    """A public event. `namespace` or `node` ends the subject. `uid` names the trace of the pod or the gang."""

    event: PublicEvent
    namespace: str = ""
    node: str = ""
    uid: str = ""


class ForgetNode(Command, frozen=True):
    """Remove the node's inventory from the key-value store."""

    node: str


class Again(Command, frozen=True):
    """There is more to decide: send a `Tick` after serving the bus."""


class Later(Command, frozen=True):
    """A batch is gathering: send a `Wake` after so many seconds."""

    seconds: float


class CheckTerm(Command, frozen=True):
    """A message names a newer term. Only the log says whether there is one: if so, this session is over."""

    reason: str


class BeginLogAnew(Command, frozen=True):
    """The log has lost acknowledged records. Delete it, so that sequences continue above all earlier ones (at least
    `first_sequence`), and end this session: the next one begins on an empty log."""

    first_sequence: int
    reason: str
