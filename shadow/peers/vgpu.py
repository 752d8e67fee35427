"""What containers have, as HAMi and Volcano write it: `UUID,Type,MiB,cores:` a GPU.

A `;` ends a container.

Project-HAMi/HAMi docs/develop/protocol.md and pkg/device/devices.go (DecodeContainerDevices, DecodePodDevices);
volcano-sh/volcano pkg/scheduler/api/devices/nvidia/vgpu/utils.go (decodePodDevices), which is the same without the
last `;`.
"""

from __future__ import annotations

from shadow.objects import SeenPod
from shadow.peers.base import Part, Unreadable, effective, whole_number

MILLI_PER_PERCENT = 10
_FIELDS = 4


def containers_of(text: str, what: str) -> list[list[Part]]:
    """The parts of each container; a container without GPUs has an empty list. Raises Unreadable."""
    segments = text.split(";")
    if segments and not segments[-1].strip():
        segments.pop()
    return [[_part(device, what) for device in segment.split(":") if device.strip()] for segment in segments]


def parts_of(pod: SeenPod, text: str, what: str) -> tuple[Part, ...]:
    """What the pod holds of each GPU. Raises Unreadable.

    Where there are as many segments as containers and init containers, the init containers come first (HAMi:
    Resourcereqs); sidecars among them run on.
    """
    held = containers_of(text, what)
    inits = pod.spec.init_containers
    if not inits or len(held) != len(inits) + len(pod.spec.containers):
        return effective((), held)
    sidecars = [part for part, init in zip(held, inits, strict=False) if init.restart_policy == "Always"]
    ordinary = [part for part, init in zip(held, inits, strict=False) if init.restart_policy != "Always"]
    return effective(ordinary, [*sidecars, *held[len(inits) :]])


def _part(text: str, what: str) -> Part:
    fields = [field.strip() for field in text.split(",")]
    if len(fields) < _FIELDS or not fields[0] or not fields[1]:
        raise Unreadable(f"{what} has {text[:80]!r}; UUID,Type,MiB,cores belongs there")
    return Part(
        uuid=physical(fields[0]),
        memory_mib=whole_number(fields[2], f"the memory in {what}"),
        milli=MILLI_PER_PERCENT * whole_number(fields[3], f"the cores in {what}"),
    )


def physical(uuid: str) -> str:
    """The GPU of a MIG instance that is written as `UUID[template-instance]`."""
    return uuid.split("[", 1)[0]
