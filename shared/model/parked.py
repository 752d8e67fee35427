"""What a pod has given up for a while without ending: the annotation `kerf.dev/parked`, and what each strategy can give up.

| | gives back | needs |
|---|---|---|
| throttle | compute above what it keeps | a strategy that limits compute in a running slice |
| pause | all compute; the memory stays where it is | the same |
| checkpoint | compute and memory, which goes to the host | room in the pod's own memory limit, a driver that can |

Eviction needs nothing, and is no parking: the pod ends.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from shared.model.gpu import Strategy, checked
from shared.model.grant import ContainerGrant, Grant

Parking = Literal["throttle", "pause", "checkpoint"]
PARKINGS: tuple[Parking, ...] = ("throttle", "pause", "checkpoint")
"""From gentle to hard."""
_CAN: dict[Strategy, frozenset[Parking]] = {
    "interposer": frozenset(PARKINGS),
    "time_slice": frozenset(PARKINGS),
}


class Parked(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    action: Parking
    plan_id: str
    """For whom it makes room."""
    compute_milli: int = 0
    """At most so much of each GPU is left to each of its containers."""

    def __post_init__(self) -> None:
        checked("compute_milli", self.compute_milli)


def can_park(action: Parking, containers: Iterable[ContainerGrant]) -> bool:
    """Whether every one of these slices can do that while it runs."""
    return all(action in _CAN.get(container.strategy, ()) and all(share.mig is None for share in container.gpus) for container in containers)


def left_of(grant: Grant, parked: Parked) -> Grant:
    """What a grant takes while its pod is parked."""
    return msgspec.structs.replace(grant, containers={name: _left(part, parked) for name, part in grant.containers.items()})


def _left(part: ContainerGrant, parked: Parked) -> ContainerGrant:
    memory = parked.action != "checkpoint"
    gpus = tuple(
        msgspec.structs.replace(share, compute_milli=min(share.compute_milli, parked.compute_milli), memory_mib=share.memory_mib if memory else 0)
        for share in part.gpus
    )
    return msgspec.structs.replace(part, gpus=gpus)


def encode_parked(parked: Parked) -> str:
    return msgspec.json.encode(parked).decode()


def decode_parked(text: str) -> Parked:
    """Raises msgspec.DecodeError on text that is none."""
    return _DECODER.decode(text)


_DECODER = msgspec.json.Decoder(Parked)
