"""The state that a node's agent must not lose, and its format as a checkpoint."""

from __future__ import annotations

import msgspec

from shared.contracts.base import ContractError, decode, encode
from shared.contracts.node_commands import NodeGrant
from shared.model.gpu import Inventory
from shared.model.grant import ContainerGrant, Grant
from shared.model.resize import higher, same_slices
from shared.model.suspension import Suspension, left_of

VERSION = 1


class Lease(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A share that was handed over to a container which has not been seen to end."""

    uid: str
    container: str
    grant_id: str
    boot_id: str
    slot: str = ""


class KnownGrant(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A grant that may be handed over or, if `releasing`, only waits for its containers to end."""

    grant: NodeGrant
    releasing: bool = msgspec.field(default=False, name="leaving")
    applied: Suspension | None = msgspec.field(default=None, name="gave_up")
    """The suspension that the slices are known to have applied. `grant.suspension` is the one that was ordered; a new
    slice starts with that one."""

    restore_pending: bool = msgspec.field(default=False, name="owed")
    """The pod was ordered to resume, and could not take everything back yet."""
    in_force: Grant | None = None
    """While running slices do not have the amounts of the grant yet: those that they have."""
    shrunk: Grant | None = None
    """Until the grant is amended, slices use no more than this: placement was promised so."""

    on_host: bool = False
    """A checkpoint was ordered, and it is not known that all GPU memory is on the GPU again."""
    rehearsed: bool = False
    """Whether it was tried to checkpoint the pod and to restore it at once."""
    cannot_checkpoint: str = ""
    """Why that failed."""
    cannot_move: str = ""
    """Why its programs can be restored to their own GPUs alone, of a pod that others may take."""

    @property
    def grant_id(self) -> str:
        return self.grant.grant.grant_id

    @property
    def runs(self) -> bool:
        """Whether its pod has all that it was given: no suspension is ordered, and none is left of an earlier one."""
        return self.grant.suspension is None and self.applied is None and not self.on_host

    @property
    def unbound(self) -> bool:
        """Whether its pod has not been seen bound yet: no container may start by it."""
        return self.grant.unbound

    @property
    def is_serving(self) -> bool:
        """Whether its pod is on another node, and this one runs a server for it."""
        return self.grant.remote is not None and self.grant.remote.role == "serving"

    @property
    def is_client(self) -> bool:
        """Whether its GPU is on another node."""
        return self.grant.remote is not None and self.grant.remote.role == "client"

    @property
    def peer(self) -> str:
        """The other node of a grant on a GPU of another node than its pod's; else empty."""
        return "" if self.grant.remote is None else self.grant.remote.peer

    @property
    def order(self) -> tuple[int, int]:
        """(term, number) of the newest order about this grant."""
        return self.grant.term, self.grant.number

    @property
    def effective(self) -> Grant:
        """The grant, with what was promised not to be used taken off."""
        return self.shrunk or self.grant.grant

    @property
    def has_all(self) -> bool:
        """Whether its slices have the amounts of the grant, neither more nor less."""
        return self.in_force is None or self.in_force.containers == self.effective.containers

    @property
    def comes_back(self) -> bool:
        """Whether it is ordered to run, and its memory is on the host or was not all seen back."""
        return self.on_host and self.grant.suspension is None

    @property
    def most(self) -> Grant:
        """The most that its slices may have now: what is granted, and what they still have of what was."""
        effective = self.effective
        if self.in_force is None or not same_slices(self.in_force, effective):
            return effective
        return msgspec.structs.replace(effective, containers=higher(self.in_force, effective))

    def share(self, container: str) -> ContainerGrant | None:
        return self.effective.containers.get(container)

    def remaining(self, container: str) -> ContainerGrant | None:
        """What the container takes of the GPUs now, less what its suspension has freed."""
        grant = self.most if self.applied is None else left_of(self.most, self.applied)
        return grant.containers.get(container)


class Released(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A release that placement has not acknowledged yet."""

    grant_id: str
    uid: str
    namespace: str = ""
    name: str = ""
    reason: str = ""


class Ailment(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A fault of a GPU that only a reset (or a reboot) clears."""

    uuid: str
    reason: str
    boot_id: str
    reboot: bool = False
    recovery_seen: bool = False
    """Whether the driver has asked for recovery since, or may have while no agent ran. Once it no longer asks, recovery
    was done."""


class GpuHistory(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the health of a GPU rests on besides what the driver says now.

    Moments are seconds of the monotonic clock, which begins anew with each boot: they mean nothing in another one.
    """

    uuid: str
    boot_id: str
    fault: str = ""
    """The last fault, as a phrase."""
    fault_seen: bool = False
    """Whether it was still seen when this was saved."""
    fault_at_s: int | None = None
    """When it was last seen, rounded up. None: never, or it was still seen."""
    slow_since_s: int | None = None
    """Since when the GPU is slowed down, rounded down. None: it is not, or not for so long that it counts."""
    ecc_volatile: int | None = None
    """Its uncorrectable errors since the driver was loaded. None: not read yet."""


class Cordon(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An operator's order that a GPU takes no new slices."""

    gpu: str = ""
    """Its UUID. Empty: all GPUs of the node."""
    by: str
    reason: str = ""


class Terms(msgspec.Struct, kw_only=True):
    """The leaders' terms, as far as the agent has been told."""

    newest: int = 0
    """Orders of older terms are refused."""
    closed: int = 0
    """The term of the newest sync. Grants of earlier terms that it does not name are void."""
    sync_number: int = 0
    """The number of the newest sync of that term."""


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The agent's whole state, as it is written to the host's disk."""

    version: int = VERSION
    node: str
    checkpoint_id: str = ""
    """Drawn on a host without a checkpoint, and kept in each one that follows. Empty: the first one was written by a
    version that drew none."""
    term: int = 0
    generation: int = 0
    boot_id: str = ""
    inventory: Inventory | None = None
    known: tuple[KnownGrant, ...] = ()
    leases: tuple[Lease, ...] = ()
    tombstones: tuple[str, ...] = ()
    """Ids of released grants, oldest first."""
    closed_term: int = 0
    """The term of the newest sync. Grants of earlier terms that it does not name are void."""
    sync_number: int = 0
    """The number of the newest sync of that term."""
    unbooked: tuple[Released, ...] = ()
    ailments: tuple[Ailment, ...] = ()
    cordons: tuple[Cordon, ...] = ()
    gpu_histories: tuple[GpuHistory, ...] = ()


class CheckpointError(ValueError):
    """The checkpoint cannot be trusted. The agent hands nothing over until an operator has looked at it."""


def write(checkpoint: Checkpoint) -> bytes:
    return encode(checkpoint)


def read(payload: bytes, node: str) -> Checkpoint:
    """Decodes a checkpoint. Raises CheckpointError if it is damaged, of another version or of another node."""
    try:
        found = decode(payload, Checkpoint)
    except ContractError as error:
        raise CheckpointError(f"the checkpoint cannot be read: {_unreadable_grant(payload) or error}") from error
    if found.version != VERSION:
        raise CheckpointError(f"the checkpoint is of version {found.version}, this agent writes {VERSION}")
    if found.node != node:
        raise CheckpointError(f"the checkpoint is of node {found.node!r}, this is {node!r}")
    return found


def _unreadable_grant(payload: bytes) -> str:
    """Which pod's grant cannot be read, and why: such as a strategy of a newer version, or of a plug-in that is gone.
    "" if it is something else."""
    try:
        for known in map(bytes, decode(payload, _Grants).known):
            pod = decode(known, _Owner).grant
            try:
                decode(known, KnownGrant)
            except ContractError as error:
                return f"the grant of pod {pod.namespace}/{pod.name}: {error}"
    except ContractError:
        return ""
    return ""


class _Grants(msgspec.Struct, frozen=True):
    known: tuple[msgspec.Raw, ...] = ()


class _Pod(msgspec.Struct, frozen=True):
    namespace: str
    name: str


class _Owner(msgspec.Struct, frozen=True):
    grant: _Pod
