"""What the node agent's core hears, and what it orders. Both are plain values; the service turns them into I/O."""

from __future__ import annotations

import msgspec

from services.node_agent.state import Ailment
from shared.contracts.commands import Evict
from shared.contracts.events import Event
from shared.contracts.node_commands import (
    Accepted,
    NodeCordon,
    NodeCordonAnswer,
    NodeGrant,
    NodeRelease,
    NodeSync,
    NodeSyncAnswer,
)
from shared.model.gpu import Inventory
from shared.model.grant import ContainerGrant
from shared.model.suspension import Suspension


class SuspendTask(msgspec.Struct, frozen=True):
    """To the slices of one grant: from now on they give up what `suspension` says; None: they take all back."""

    grant_id: str
    uid: str
    containers: tuple[str, ...]
    """Those that were handed over."""
    suspension: Suspension | None
    was: Suspension | None = None
    """What they were told before."""
    applied: Suspension | None = None
    """What they had given up before."""


class SuspendResult(msgspec.Struct, frozen=True):
    """`reason` empty: it is so. Else why it is not; then all is as it was before."""

    task: SuspendTask
    reason: str = ""
    is_partial: bool = False
    """Some of it was done, and could not be undone: it is to be taken back as soon as it can be."""


class Input(msgspec.Struct, frozen=True):
    pass


class InventorySeen(Input, frozen=True):
    """What the devices say now. Its generation is ignored: the core counts."""

    inventory: Inventory
    ailments: tuple[Ailment, ...] = ()


class CordonRequested(Input, frozen=True):
    cordon: NodeCordon


class GrantReceived(Input, frozen=True):
    grant: NodeGrant


class ReleaseReceived(Input, frozen=True):
    release: NodeRelease


class SyncReceived(Input, frozen=True):
    sync: NodeSync


class ReleasesBooked(Input, frozen=True):
    """Placement has these releases in its book: no need to repeat them."""

    grant_ids: tuple[str, ...]


class StartRequested(Input, frozen=True):
    """The kubelet is about to start a container of this pod that uses GPUs."""

    uid: str
    container: str
    slot: str = ""
    pod: tuple[str, str] | None = None
    """(namespace, name) where the kubelet says so: the grant must be of that pod."""


class ContainerEnded(Input, frozen=True):
    """Nothing of the container runs any more, and nothing of it will without another `StartRequested`."""

    uid: str
    container: str


class SuspensionDone(Input, frozen=True):
    """What became of a `SuspendSlices`."""

    request: NodeGrant | NodeSync
    results: tuple[SuspendResult, ...]


class Reconnected(Input, frozen=True):
    """The bus is back, and may have lost everything."""


class Tick(Input, frozen=True):
    """About once a second."""


class Command(msgspec.Struct, frozen=True):
    pass


class Save(Command, frozen=True):
    """Make the checkpoint durable before any command after this one: those are promises that stand on it."""


class Answer(Command, frozen=True):
    """The reply to the request that was handled."""

    body: Accepted | NodeSyncAnswer | NodeCordonAnswer


class HandOver(Command, frozen=True):
    """Give the container exactly this. Asked again for a running or restarted container it is the same."""

    uid: str
    container: str
    grant_id: str
    share: ContainerGrant
    suspension: Suspension | None = None
    """It starts having given this up."""


class SuspendSlices(Command, frozen=True):
    """The slices do what is asked of them, one ask after another; then `SuspensionDone`, which has the answer to `asked`."""

    request: NodeGrant | NodeSync
    tasks: tuple[SuspendTask, ...]


class RefuseStart(Command, frozen=True):
    """The container must not start now. The kubelet shows the sentence and tries again."""

    uid: str
    container: str
    code: str
    sentence: str


class FetchGrant(Command, frozen=True):
    """SuspendTask placement for this pod's grant: the kubelet came before the bus did."""

    uid: str


class PutInventory(Command, frozen=True):
    inventory: Inventory


class ClearAilments(Command, frozen=True):
    """A person says that these GPUs, by UUID, were seen to: what they had is forgotten."""

    gpus: tuple[str, ...]


class EvictPods(Command, frozen=True):
    evictions: tuple[Evict, ...]


class Publish(Command, frozen=True):
    """A public event. A repeated one has the same id. `namespace` empty: under the node's own subject."""

    event: Event
    event_id: str
    namespace: str = ""
    traceparent: str = ""
