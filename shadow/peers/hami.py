"""HAMi: which GPUs, how much memory and how many cores each pod has is in the pod's annotations.

Project-HAMi/HAMi docs/develop/protocol.md, pkg/device/devices.go (UnMarshalNodeDevices, DecodeNodeDevices) and
pkg/device/nvidia/device.go: `hami.io/vgpu-devices-allocated` is what was given, `hami.io/vgpu-devices-to-allocate` what
the device plugin has not handed over yet, `hami.io/node-nvidia-register` the node's GPUs, as JSON or as text.
"""

from __future__ import annotations

import msgspec

from shadow.objects import SeenPod
from shadow.peers import vgpu
from shadow.peers.base import RESOURCE_GPU, Device, Given, Surroundings, Unreadable, amount_of, whole_number
from shared.formats import UNREADABLE
from shared.model.objects import Node

ALLOCATED = "hami.io/vgpu-devices-allocated"
TO_ALLOCATE = "hami.io/vgpu-devices-to-allocate"
RESOURCES = ("nvidia.com/gpumem", "nvidia.com/gpumem-percentage", "nvidia.com/gpucores")
SCHEDULER = "hami-scheduler"
NODE = "hami.io/vgpu-node"
REGISTER = "hami.io/node-nvidia-register"
_FIELDS = (7, 9)


class _Registered(msgspec.Struct, frozen=True):
    """A GPU in the JSON form; zeros are left out there (omitempty)."""

    id: str
    index: int = 0
    count: int = 0
    devmem: int = 0
    devcore: int = 0
    type: str = ""
    health: bool = False


class Hami:
    name = "hami"

    def devices(self, node: Node) -> tuple[Device, ...] | None:
        text = node.metadata.annotations.get(REGISTER, "").strip()
        if not text:
            return None
        what = f"annotation {REGISTER} of node {node.metadata.name}"
        return tuple(
            Device(
                node=node.metadata.name,
                uuid=one.id,
                index=one.index,
                model=one.type.removeprefix("NVIDIA-").replace(" ", "-"),
                memory_mib=one.devmem,
                milli=vgpu.MILLI_PER_PERCENT * one.devcore,
                max_sharers=one.count,
                healthy=one.health,
            )
            for one in registered(text, what)
        )

    def given(self, pod: SeenPod, around: Surroundings) -> Given | None:  # noqa: ARG002 - the form is the protocol's
        notes = pod.metadata.annotations
        for key in (ALLOCATED, TO_ALLOCATE):
            if notes.get(key, "").strip(" ;"):
                parts = vgpu.parts_of(pod, notes[key], f"annotation {key} of pod {pod.key}")
                node = pod.spec.node_name or notes.get(NODE, "")
                if not node:
                    raise Unreadable(f"pod {pod.key} has annotation {key} and no node; {NODE} belongs beside it")
                return Given(peer=self.name, node=node, parts=parts)
        if pod.spec.node_name and _asks(pod):
            raise Unreadable(
                f"pod {pod.key} is bound to node {pod.spec.node_name} without annotation {ALLOCATED}: which GPU it "
                "has is recorded nowhere"
            )
        return None


def _asks(pod: SeenPod) -> bool:
    """Whether the pod can only be HAMi's."""
    own = any(amount_of(pod, resource) for resource in RESOURCES)
    return own or (pod.spec.scheduler_name == SCHEDULER and amount_of(pod, RESOURCE_GPU) > 0)


def registered(text: str, what: str) -> list[_Registered]:
    """Raises Unreadable."""
    if text.startswith("["):
        try:
            return msgspec.json.decode(text, type=list[_Registered])
        except UNREADABLE as error:
            raise Unreadable(f"{what} is not HAMi's list of GPUs: {error}") from None
    found = []
    for place, device in enumerate(part for part in text.split(":") if part.strip()):
        fields = [field.strip() for field in device.split(",")]
        if len(fields) not in _FIELDS:
            raise Unreadable(f"{what} has a GPU of {len(fields)} fields, {device[:80]!r}; HAMi writes 9, or once 7")
        found.append(
            _Registered(
                id=fields[0],
                count=whole_number(fields[1], f"the count in {what}"),
                devmem=whole_number(fields[2], f"the memory in {what}"),
                devcore=whole_number(fields[3], f"the cores in {what}"),
                type=fields[4],
                health=fields[6].lower() in ("true", "t", "1"),
                index=whole_number(fields[7], f"the index in {what}") if len(fields) == _FIELDS[1] else place,
            )
        )
    return found
