"""The grant: what placement gave to a pod, as written in the annotation `kerf.dev/grant`."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from shared.model.gpu import checked
from shared.model.mig import MigInstance
from shared.model.strategies import REMOTE, StrategyName

GRANT_VERSION = 1


class GpuShare(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A part of one GPU. Whole GPUs have all of the memory and 1000 milli."""

    node: str
    uuid: str
    memory_mib: int
    compute_milli: int
    mig: MigInstance | None = None
    """The MIG instance of that GPU; its uuid is set only if the instance existed before."""
    requested_mib: int = 0
    """Of a MIG instance for a part: the memory that was requested. 0: the instance was requested by name."""
    requested_milli: int = 0
    """The compute that was requested beside it."""
    memory_limit_mib: int = 0
    """Up to which the container may use memory of this GPU that no slice is guaranteed; 0: `memory_mib`."""
    compute_limit_milli: int = 0
    """The same of its compute; 0: `compute_milli`."""

    def __post_init__(self) -> None:
        checked("memory_mib", self.memory_mib)
        checked("compute_milli", self.compute_milli)
        checked("requested_mib", self.requested_mib)
        checked("requested_milli", self.requested_milli)
        checked("memory_limit_mib", self.memory_limit_mib)
        checked("compute_limit_milli", self.compute_limit_milli)


class ContainerGrant(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    strategy: StrategyName
    gpus: tuple[GpuShare, ...]
    claim: str = ""
    """The uid of the ResourceClaim whose devices these are; empty for a container's own share."""
    serving: StrategyName | None = None
    """Of strategy `remote`: the strategy that limits the container's server on the node of the GPU."""

    @property
    def limited_by(self) -> StrategyName:
        """The strategy that limits its use of the GPU, on the GPU's node."""
        return self.serving or self.strategy

    @property
    def served(self) -> ContainerGrant:
        """Of strategy `remote`: the ordinary slice that the container's server has on the node of the GPU."""
        return msgspec.structs.replace(self, strategy=self.limited_by, serving=None)


class Grant(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Identity is `grant_id`: unique for ever, so a tombstone on it can never hit another one.

    `sequence` is the decision's place in the log; (term, sequence) orders grants.
    """

    version: int = GRANT_VERSION
    grant_id: str
    term: int
    sequence: int = 0
    traceparent: str = ""
    dialect: str = ""
    """The dialect of the pod, if it is not Kerf's own: its containers get that dialect's environment."""
    containers: dict[str, ContainerGrant] = {}
    priority: int = 0
    """The pod's: where slices of one GPU take turns, the higher goes first."""
    tier: str = ""
    """kerf.dev/tier, if the pod has it: on its GPU an opportunistic pod comes after all others."""
    restart_cost_s: int | None = None
    """kerf.dev/restart-cost, if the pod has it: the run time that is lost when it ends."""
    nics: tuple[str, ...] = ()
    """The network cards of the pod, by their names on its node. Each of its containers with GPUs may use them."""
    amendment: int = 0
    """How often the amounts of the running pod, or its GPUs, were changed. The rest stays as it was decided."""
    any_gpu: bool = False
    """Its containers see all GPUs of its node, so that its memory can come back from the host to another GPU of the
    same model. The amended grant then has the same amounts, share by share, on other GPUs."""
    init_share: str = ""
    """The container that shares its slice with the pod's init containers. Empty: none of them requests a GPU, or the
    grant is of an earlier version."""


def serving_node(grant: Grant) -> str:
    """The node whose GPU the pod uses over the network; empty if it uses those of its own node."""
    for container in grant.containers.values():
        if container.strategy == REMOTE and container.gpus:
            return container.gpus[0].node
    return ""


def sum_shares(grants: Iterable[Grant]) -> dict[tuple[str, str], tuple[int, int]]:
    """What these grants take together of each GPU: (memory_mib, compute_milli) by (node, uuid)."""
    taken: dict[tuple[str, str], tuple[int, int]] = {}
    for grant in grants:
        for container in grant.containers.values():
            for share in container.gpus:
                mib, milli = taken.get((share.node, share.uuid), (0, 0))
                taken[share.node, share.uuid] = (mib + share.memory_mib, milli + share.compute_milli)
    return taken


def encode_grant(grant: Grant) -> str:
    return msgspec.json.encode(grant).decode()


def decode_grant(text: str) -> Grant:
    """Raises one of `formats.UNREADABLE`, most often with the path of what is wrong, on text that is no grant."""
    return _DECODER.decode(text)


_DECODER = msgspec.json.Decoder(Grant)
