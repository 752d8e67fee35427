"""The inputs of the node agent's core, and the commands that it returns.

Both are plain values; the service turns them into I/O.
"""

from __future__ import annotations

import msgspec

from services.node_agent.moves import Move
from services.node_agent.state import Ailment, GpuHistory
from shared.contracts.commands import Evict
from shared.contracts.events import Event
from shared.contracts.node_commands import (
    Accepted,
    NodeCordon,
    NodeCordonAnswer,
    NodeGrant,
    NodeHold,
    NodeHoldAnswer,
    NodeRelease,
    NodeSync,
    NodeSyncAnswer,
    RemoteEnd,
)
from shared.model.causes import Caused
from shared.model.gpu import Inventory
from shared.model.grant import ContainerGrant, Grant
from shared.model.suspension import Suspension
from shared.model.turn_terms import SuspendHook


class SliceNotReady(OSError):
    """A container must not start yet, because what its strategy needs is not there. The text says what."""

    code = "slice-not-ready"


class SuspendTask(msgspec.Struct, frozen=True):
    """Tells the slices of one grant to apply `suspension`; None: to resume and take everything back."""

    grant_id: str
    uid: str
    containers: tuple[str, ...]
    """The containers of the grant that are handed over."""
    suspension: Suspension | None
    previous: Suspension | None = None
    """The suspension that was ordered before."""
    applied: Suspension | None = None
    """The suspension that the slices had applied before."""
    hook: SuspendHook | None = None
    """How its program is told to sleep before a checkpoint, and to wake up after it."""
    move: Move | None = None
    """To which GPUs what is on the host comes back; None: to its own."""
    after: Grant | None = None
    """What its slices have when it is there."""


class ResizeTask(msgspec.Struct, frozen=True):
    """Tells the slices of one grant to have these amounts."""

    grant_id: str
    uid: str
    containers: tuple[str, ...]
    """The containers of the grant that are handed over."""
    before: Grant
    after: Grant
    shrinks: bool = False
    """The program may have more than `after`; then nothing changes."""
    promise: Grant | None = None
    """What they promise to use at most from then on; what they have then is less where they were growing."""


class SuspendResult(msgspec.Struct, frozen=True):
    """What became of a task. `reason` empty: it succeeded. Otherwise `reason` says why not, and nothing has changed."""

    task: SuspendTask
    reason: str = ""
    is_partial: bool = False
    """The task failed halfway and could not be undone: the agent restores the slices as soon as it can."""
    on_host: bool = False
    """A pod that resumes has its memory on the host, and gets it back when there is room for all of it."""


class Input(msgspec.Struct, frozen=True):
    pass


class InventorySeen(Input, frozen=True):
    """What NVML reports now. The generation of the inventory is ignored: the core counts it."""

    inventory: Inventory
    ailments: tuple[Ailment, ...] = ()
    histories: tuple[GpuHistory, ...] = ()


class IdleSeen(Input, frozen=True):
    """Which pods are idle, and which suspended ones that were want their GPU: see `Inventory`."""

    idle: dict[str, float]
    woken: dict[str, float]


class CordonRequested(Input, frozen=True):
    cordon: NodeCordon


class GrantReceived(Input, frozen=True):
    grant: NodeGrant


class ReleaseReceived(Input, frozen=True):
    release: NodeRelease


class SyncReceived(Input, frozen=True):
    sync: NodeSync


class HoldReceived(Input, frozen=True):
    hold: NodeHold


class ReleasesBooked(Input, frozen=True):
    """Placement has acknowledged these releases: the agent need not repeat them."""

    grant_ids: tuple[str, ...]


class StartRequested(Input, frozen=True):
    """The kubelet is about to start a container of this pod that uses GPUs."""

    uid: str
    container: str
    slot: str = ""
    pod: tuple[str, str] | None = None
    """(namespace, name) if the kubelet names the pod: the grant must belong to that pod."""


class ContainerEnded(Input, frozen=True):
    """The container has ended: no process of it is left, and none will start without another `StartRequested`."""

    uid: str
    container: str


class ServerStarted(Input, frozen=True):
    """What became of a `Serve`. `reason` empty: the server accepts connections. Else why not, and nothing runs."""

    uid: str
    container: str
    grant_id: str
    reason: str = ""


class ServerFound(Input, frozen=True):
    """The answer to `FindServer`. Not `runs`: nothing listens for its container."""

    uid: str
    container: str
    grant_id: str
    runs: bool


class ServerEnded(Input, frozen=True):
    """Nothing of a server runs any more: the answer to `EndServer`; or it ended by itself, and how."""

    uid: str
    container: str
    grant_id: str
    by_itself: str = ""


class ServerStillRuns(Input, frozen=True):
    """A server could not be ended."""

    uid: str
    container: str
    grant_id: str


class SuspensionDone(Input, frozen=True):
    """The results of a `SuspendSlices`."""

    request: NodeGrant | NodeSync
    results: tuple[SuspendResult, ...]


class ResizeDone(Input, frozen=True):
    """The result of a `ResizeSlices`. `reason`: why the slices are as they were; empty if they have the amounts."""

    request: NodeGrant | None
    task: ResizeTask
    reason: str = ""
    is_partial: bool = False
    """Nor are they all as they were: the agent restores them as soon as it can."""


class Rehearsed(Input, frozen=True):
    """A pod was checkpointed and restored to see whether that can be done. `reason`: why it cannot; empty: it can."""

    grant_id: str
    reason: str = ""
    cannot_move: str = ""
    """Why it can be restored to its own GPUs alone; empty: to others too, or it was not asked to."""


class Reconnected(Input, frozen=True):
    """The connection to NATS is back. The servers may have lost all data."""


class Tick(Input, frozen=True):
    """Comes about once a second."""


class Command(Caused, frozen=True):
    """What the shell is to do. `cause` is the number of the input that it follows from."""


class Save(Command, frozen=True):
    """Make the checkpoint durable before the commands that follow: they are promises that rest on it."""


class Answer(Command, frozen=True):
    """The reply to the request that was handled."""

    body: Accepted | NodeSyncAnswer | NodeCordonAnswer | NodeHoldAnswer


class HandOver(Command, frozen=True):
    """Give the container exactly this share. A running or restarted container gets the same share again."""

    uid: str
    container: str
    grant_id: str
    share: ContainerGrant
    suspension: Suspension | None = None
    """The suspension that the container starts with."""
    remote: RemoteEnd | None = None
    """Where the GPU is, if it is one of another node."""


class Serve(Command, frozen=True):
    """Start the server of a container of another node, and pass in `ServerStarted`. A running one stays."""

    uid: str
    container: str
    grant_id: str
    share: ContainerGrant
    peer: str
    """The container's node."""


class FindServer(Command, frozen=True):
    """See whether a server runs that an earlier agent has started, and pass in `ServerFound`. Nothing is started."""

    uid: str
    container: str
    grant_id: str
    peer: str
    """The container's node."""


class EndServer(Command, frozen=True):
    """End a server, and pass in `ServerEnded` when nothing of it runs, `ServerStillRuns` if that cannot be done."""

    uid: str
    container: str
    grant_id: str


class ClientEnded(Command, frozen=True):
    """A container that used a GPU of another node has ended."""

    uid: str
    container: str


class SuspendSlices(Command, frozen=True):
    """Run these tasks one after the other, then pass in `SuspensionDone`, which returns the answer to `request`."""

    request: NodeGrant | NodeSync
    tasks: tuple[SuspendTask, ...]


class HoldPods(Command, frozen=True):
    """Stop all processes of these pods together and hold them for `hold_s`, or let them go on (0); then answer."""

    uids: tuple[str, ...]
    hold_s: float


class ResizeSlices(Command, frozen=True):
    """Run this task, then pass in `ResizeDone`, which returns the answer to `request`."""

    task: ResizeTask
    request: NodeGrant | None = None


class RefuseStart(Command, frozen=True):
    """The container must not start now. The kubelet shows the sentence and tries again."""

    uid: str
    container: str
    code: str
    sentence: str


class FetchGrant(Command, frozen=True):
    """Ask placement for this pod's grant: the kubelet starts the pod before placement's message has arrived."""

    uid: str


class PutInventory(Command, frozen=True):
    inventory: Inventory


class ClearAilments(Command, frozen=True):
    """An operator says that these GPUs, by UUID, were repaired: forget their ailments."""

    gpus: tuple[str, ...]


class EvictPods(Command, frozen=True):
    evictions: tuple[Evict, ...]


class Publish(Command, frozen=True):
    """Publish an event. A repeated one has the same id. `namespace` empty: it goes under the node's own subject."""

    event: Event
    event_id: str
    namespace: str = ""
    traceparent: str = ""
