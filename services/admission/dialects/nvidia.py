"""Plain NVIDIA: `nvidia.com/gpu: N` is N whole GPUs. Read only by opt-in, for NVIDIA's own plugin serves the same
name."""

from __future__ import annotations

from services.admission.dialects.base import Json, Manifest, Setting, Translation, amount, containers
from services.admission.dialects.selection import selection
from shared.model import names

RESOURCE = "nvidia.com/gpu"
_SHARED = frozenset(
    ("nvidia.com/gpumem", "nvidia.com/gpumem-percentage", "nvidia.com/gpucores", "nvidia.com/gpu.shared")
)
"""With one of these beside it, the pod is written for another sharing system and means something else by
nvidia.com/gpu."""


class Nvidia:
    name = "nvidia"
    resources = frozenset({RESOURCE})
    schedulers: tuple[str, ...] = ()

    def speaks(self, manifest: Manifest, setting: Setting) -> bool:
        return setting.plain_nvidia and RESOURCE in manifest.named and manifest.named.isdisjoint(_SHARED)

    def translate(self, pod: Json, setting: Setting) -> Translation:  # noqa: ARG002 - the form is the protocol's
        found = {
            place: {names.RESOURCE_GPU: str(count)}
            for place, container in containers(pod)
            if (count := amount(container, RESOURCE))
        }
        return Translation(amounts=found, removed=self.resources, annotations=selection(pod))
