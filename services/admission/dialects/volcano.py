"""Volcano: `volcano.sh/vgpu-number` GPUs, of each `vgpu-memory` (MiB) or `vgpu-memory-percentage`, and `vgpu-cores`.

As in Volcano 1.15 (pkg/scheduler/api/devices/nvidia/vgpu): memory alone is one GPU, no memory is all of it, all cores
mean a GPU alone. Its older plugin's `volcano.sh/gpu-memory` (MiB of one GPU) and `volcano.sh/gpu-number` (whole GPUs)
are read too (pkg/scheduler/api/devices/nvidia/gpushare/share.go).
"""

from __future__ import annotations

from services.admission.dialects import vgpu
from services.admission.dialects.base import (
    Json,
    Manifest,
    Setting,
    Translation,
    amount,
    containers,
    refuse_annotations,
    where_of,
)
from services.admission.dialects.selection import selection
from shared.model import names
from shared.model.request import RequestError

NAMES = vgpu.Names(
    "volcano.sh/vgpu-number", "volcano.sh/vgpu-memory", "volcano.sh/vgpu-memory-percentage", "volcano.sh/vgpu-cores"
)
OLD_MEMORY = "volcano.sh/gpu-memory"
OLD_NUMBER = "volcano.sh/gpu-number"
_MODE = "volcano.sh/vgpu-mode"
_REFUSED = {
    "volcano.sh/gpu-index": f"an index names another GPU on each node; write {names.ANNOTATION_GPU_UUID}",
}


class Volcano:
    name = "volcano"
    resources = NAMES.all | {OLD_MEMORY, OLD_NUMBER}
    schedulers: tuple[str, ...] = ("volcano",)

    def speaks(self, manifest: Manifest, setting: Setting) -> bool:  # noqa: ARG002 - the form is the protocol's
        return not manifest.named.isdisjoint(self.resources)

    def translate(self, pod: Json, setting: Setting) -> Translation:
        refuse_annotations(pod, _REFUSED)
        found = {place: _container(container, setting) for place, container in containers(pod)}
        return Translation(
            amounts={place: asked for place, asked in found.items() if asked},
            removed=self.resources,
            annotations=selection(pod) | vgpu.isolation(pod, _MODE) | {names.ANNOTATION_DIALECT: self.name},
        )


def _container(container: Json, setting: Setting) -> dict[str, str]:
    ask = vgpu.read(container, NAMES, setting.volcano)
    memory, number = amount(container, OLD_MEMORY), amount(container, OLD_NUMBER)
    if sum((ask is not None, bool(memory), bool(number))) > 1:
        raise RequestError(
            "mixed-dialects",
            f"{where_of(container)} asks for GPUs by {NAMES.count}, {OLD_MEMORY} or {OLD_NUMBER}; keep one of them",
        )
    if number:
        return {names.RESOURCE_GPU: str(number)}
    if memory:
        ask = vgpu.PerGpu(count=1, memory_mib=memory)
    return {} if ask is None else vgpu.canonical(ask)
