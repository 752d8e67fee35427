"""To which GPUs a checkpointed pod comes back: the map of GPUs that the driver wants. Pure.

The driver's documentation (cuCheckpointProcessRestore) says that a map has to name every checkpointed GPU, and it wants
every GPU that the process can see, also those without a context (NVIDIA/cuda-checkpoint, issue 35). So a map is a
permutation of all GPUs of the node: what the pod leaves takes, for its processes, the place of what it gets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from shared.model.gpu import Gpu
from shared.model.grant import Grant


class MoveError(ValueError):
    """Memory cannot be restored in this way. The text says why."""


class Step(msgspec.Struct, frozen=True):
    """How one process is restored: the map, and the pod's GPUs before and after it, as the locks' worker reads them."""

    mapped: str
    before: str
    after: str


class Move(msgspec.Struct, frozen=True):
    """Where a pod was when its processes began, and where it shall be."""

    before: str
    """A place: the UUIDs of the pod's GPUs, each once, in the order of its grant."""
    after: str
    models: Mapping[str, str]
    """All GPUs that its containers can open, with their models."""
    tries: bool = False
    """A map is used even where it changes nothing: to see whether the driver takes it."""

    def step(self, place: str) -> Step | None:
        """How a process that is there is restored; None: as it is. Raises MoveError."""
        if place == self.after:
            return Step(identity(self.models), place, place) if self.tries else None
        return Step(mapped(place.split(","), self.after.split(","), self.models), place, self.after)


def place_of(grant: Grant, node: str) -> str:
    """The GPUs of a grant on a node, each once, in the grant's order."""
    shares = [share for name in sorted(grant.containers) for share in grant.containers[name].gpus]
    return ",".join(dict.fromkeys(share.uuid for share in shares if share.node == node))


def identity(models: Mapping[str, str]) -> str:
    """The map that leaves every GPU where it is."""
    return ",".join(f"{uuid}={uuid}" for uuid in sorted(models))


def mapped(old: list[str], new: list[str], models: Mapping[str, str]) -> str:
    """The map by which what is on `old` comes to `new`, GPU by GPU, and every other GPU to one of its model. Raises
    MoveError."""
    if len(old) != len(new) or len(set(old)) != len(old) or len(set(new)) != len(new):
        raise MoveError(f"{len(old)} GPUs cannot become {len(new)} others one by one")
    for one, other in zip(old, new, strict=True):
        if one not in models or other not in models:
            raise MoveError(f"GPU {one if one not in models else other} is not on this node")
        if models[one] != models[other]:
            raise MoveError(f"GPU {one} is a {models[one]}, and GPU {other} a {models[other]}")
    to = dict(zip(old, new, strict=True))
    to |= {uuid: uuid for uuid in models if uuid not in old and uuid not in new}
    left = [uuid for uuid in old if uuid not in new]
    for uuid in [uuid for uuid in new if uuid not in old]:
        place = next(other for other in left if models[other] == models[uuid])
        left.remove(place)
        to[uuid] = place
    return ",".join(f"{uuid}={to[uuid]}" for uuid in sorted(to))


def why_not_a_move(before: Grant, after: Grant) -> str:
    """Why the one grant is not the other with each GPU in another one's place; empty if it is."""
    if not after.any_gpu:
        return "its containers can open their own GPUs alone"
    to: dict[tuple[str, str], str] = {}
    if before.containers.keys() != after.containers.keys():
        return "it has other containers"
    for name, part in before.containers.items():
        other = after.containers[name]
        if (part.strategy, part.claim, len(part.gpus)) != (other.strategy, other.claim, len(other.gpus)):
            return "it has other strategies or another number of GPUs"
        for one, two in zip(part.gpus, other.gpus, strict=True):
            if one.node != two.node or one.mig is not None or two.mig is not None:
                return "it is on another node, or has MIG instances"
            if msgspec.structs.replace(two, uuid=one.uuid) != one:
                return "it has other amounts"
            if to.setdefault((one.node, one.uuid), two.uuid) != two.uuid:
                return f"what is together on GPU {one.uuid} would come to two GPUs"
    if len(set(to.values())) != len(to):
        return "what is on two GPUs would come to one"
    return ""


FIRST_DRIVER = 580
"""The first driver that takes a map of GPUs (CUDA 13.0)."""


def can_move(gpus: Sequence[Gpu], driver_version: str) -> bool:
    """Whether this node could restore what was on one of its GPUs to another one."""
    major = driver_version.split(".", maxsplit=1)[0]
    if not major.isdecimal() or int(major) < FIRST_DRIVER or any(gpu.mig_enabled for gpu in gpus):
        return False
    return len({gpu.model for gpu in gpus}) < len(gpus)
