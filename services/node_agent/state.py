"""What a node's agent must not forget: the form of its checkpoint."""

from __future__ import annotations

import msgspec

from shared.contracts.base import ContractError, decode, encode
from shared.contracts.node_commands import NodeGrant
from shared.model.gpu import Inventory
from shared.model.grant import ContainerGrant
from shared.model.suspension import Suspension, left_of

VERSION = 1


class Lease(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A container's part that was handed over and has not been seen to end."""

    uid: str
    container: str
    grant_id: str
    boot_id: str
    slot: str = ""


class Known(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A grant that may be handed over, or, once `releasing`, only waits for its containers to end."""

    grant: NodeGrant
    releasing: bool = msgspec.field(default=False, name="leaving")
    applied: Suspension | None = msgspec.field(default=None, name="gave_up")
    """What its slices have given up, by evidence; `grant.suspension` is what they were told to, which a new slice starts with."""

    restore_pending: bool = msgspec.field(default=False, name="owed")
    """It was told to take back all, and could not yet."""

    @property
    def grant_id(self) -> str:
        return self.grant.grant.grant_id

    @property
    def unbound(self) -> bool:
        """Its pod has not been seen bound yet: nothing may be started by it."""
        return self.grant.unbound

    @property
    def order(self) -> tuple[int, int]:
        """Of the newest order about it: (term, number)."""
        return self.grant.term, self.grant.number

    def share(self, container: str) -> ContainerGrant | None:
        return self.grant.grant.containers.get(container)

    def left(self, container: str) -> ContainerGrant | None:
        """What the container takes of the device now."""
        grant = self.grant.grant if self.applied is None else left_of(self.grant.grant, self.applied)
        return grant.containers.get(container)


class Released(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A release that placement has not booked yet."""

    grant_id: str
    uid: str
    namespace: str = ""
    name: str = ""
    reason: str = ""


class Ailment(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A GPU's trouble that only a reset (or a reboot) mends."""

    uuid: str
    reason: str
    boot_id: str
    reboot: bool = False
    recovery_seen: bool = False
    """The driver has asked for recovery since, or may have while nobody looked: when it asks no more, it was done."""


class Cordon(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A person's word that a GPU takes no new slices."""

    gpu: str = ""
    """Its UUID; empty: all GPUs of the node."""
    by: str
    reason: str = ""


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything, as it is written to the host's disk."""

    version: int = VERSION
    node: str
    term: int = 0
    generation: int = 0
    boot_id: str = ""
    inventory: Inventory | None = None
    known: tuple[Known, ...] = ()
    leases: tuple[Lease, ...] = ()
    tombstones: tuple[str, ...] = ()
    """Oldest first."""
    closed_term: int = 0
    """The term of the newest sync. Grants of earlier terms that it did not name are void."""
    sync_number: int = 0
    """The number of the newest sync of that term."""
    unbooked: tuple[Released, ...] = ()
    ailments: tuple[Ailment, ...] = ()
    cordons: tuple[Cordon, ...] = ()


class CheckpointError(ValueError):
    """A checkpoint that cannot be trusted. The agent hands nothing over until a person has looked at it."""


def write(checkpoint: Checkpoint) -> bytes:
    return encode(checkpoint)


def read(payload: bytes, node: str) -> Checkpoint:
    """Raises CheckpointError on damage, on another version and on another node's file."""
    try:
        found = decode(payload, Checkpoint)
    except ContractError as error:
        raise CheckpointError(f"the checkpoint cannot be read: {error}") from error
    if found.version != VERSION:
        raise CheckpointError(f"the checkpoint is of version {found.version}, this agent writes {VERSION}")
    if found.node != node:
        raise CheckpointError(f"the checkpoint is of node {found.node!r}, this is {node!r}")
    return found
