"""What a pod has given up for a while without ending: the annotation `kerf.dev/suspended`, and what each strategy can
give up.

| | gives back | needs |
|---|---|---|
| throttle | compute above what it keeps | a strategy that limits compute in a running slice |
| pause | all compute; the memory stays where it is | the same |
| shrink | memory above what it keeps, never less than it has allocated | a strategy that limits memory while it runs |
| checkpoint | compute and memory, which goes to the host | room in the pod's own memory limit, a driver that can |

Eviction needs nothing, and is no suspension: the pod ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from shared.model import names
from shared.model.gpu import checked
from shared.model.grant import ContainerGrant, GpuShare, Grant
from shared.model.strategies import registered
from shared.model.strategy import Strategy

SuspendAction = Literal["throttle", "pause", "shrink", "checkpoint"]
SUSPEND_ACTIONS: tuple[SuspendAction, ...] = ("throttle", "pause", "shrink", "checkpoint")
"""From gentle to hard."""


class Suspension(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    action: SuspendAction
    plan_id: str
    """The plan for which it is suspended."""
    compute_milli: int = 0
    """At most so much of each GPU is left to each of its containers; where it is shrunk, all of it."""
    memory_mib: int = 0
    """Of each GPU, where it is shrunk: at most so much is left to each of its containers."""

    def __post_init__(self) -> None:
        checked("compute_milli", self.compute_milli)
        checked("memory_mib", self.memory_mib)


def goes_to_host(suspension: Suspension | None) -> bool:
    """Whether GPU memory is on the host by it, or shall be."""
    return suspension is not None and suspension.action == "checkpoint"


def can_suspend(action: SuspendAction, containers: Iterable[ContainerGrant]) -> bool:
    """Whether every one of these slices can do that while it runs."""
    return all(
        _supports(registered()[container.strategy], action) and all(share.mig is None for share in container.gpus)
        for container in containers
    )


def _supports(strategy: Strategy, action: SuspendAction) -> bool:
    match action:
        case "throttle" | "pause":
            return strategy.limits_compute
        case "shrink":
            return strategy.limits_memory
        case "checkpoint":
            return strategy.checkpoints


def left_of(grant: Grant, suspension: Suspension) -> Grant:
    """What a grant takes while its pod is suspended."""
    return msgspec.structs.replace(
        grant, containers={name: left_of_part(part, suspension) for name, part in grant.containers.items()}
    )


def left_of_part(part: ContainerGrant, suspension: Suspension) -> ContainerGrant:
    """What one of its containers takes meanwhile."""
    return msgspec.structs.replace(part, gpus=tuple(_left_share(share, suspension) for share in part.gpus))


def _left_share(share: GpuShare, suspension: Suspension) -> GpuShare:
    if share.memory_limit_mib or share.compute_limit_milli:
        # What a suspended pod gives up is for others: it uses nothing beyond what is left to it.
        share = msgspec.structs.replace(share, memory_limit_mib=0, compute_limit_milli=0)
    match suspension.action:
        case "shrink":
            return msgspec.structs.replace(share, memory_mib=min(share.memory_mib, suspension.memory_mib))
        case "checkpoint":
            return msgspec.structs.replace(share, memory_mib=0, compute_milli=0)
        case _:
            return msgspec.structs.replace(share, compute_milli=min(share.compute_milli, suspension.compute_milli))


def annotated_suspension(annotations: Mapping[str, str]) -> str:
    """The annotation by its present name, else by its former one; empty where there is neither."""
    return annotations.get(names.ANNOTATION_SUSPENDED) or annotations.get(names.ANNOTATION_PARKED, "")


def suspension_patch(text: str) -> dict[str, str | None]:
    """What to write for this text; empty ends the suspension."""
    return {names.ANNOTATION_SUSPENDED: text or None, names.ANNOTATION_PARKED: None}


def encode_suspension(suspension: Suspension) -> str:
    return msgspec.json.encode(suspension).decode()


def decode_suspension(text: str) -> Suspension:
    """Raises one of `formats.UNREADABLE` on text that is none."""
    return _DECODER.decode(text)


_DECODER = msgspec.json.Decoder(Suspension)
