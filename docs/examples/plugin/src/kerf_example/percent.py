"""A dialect: example.com/gpu-percent is a percentage of one GPU."""

from __future__ import annotations

from services.admission.dialects.base import Json, Manifest, Setting, Translation, amount, containers
from shared.model import names

RESOURCE = "example.com/gpu-percent"


class Percent:
    name = "percent"
    resources = frozenset({RESOURCE})
    schedulers: tuple[str, ...] = ()

    def speaks(self, manifest: Manifest, setting: Setting) -> bool:
        return RESOURCE in manifest.named

    def translate(self, pod: Json, setting: Setting) -> Translation:
        asked = {place: amount(container, RESOURCE) for place, container in containers(pod)}
        return Translation(
            amounts={place: {names.RESOURCE_GPU_COMPUTE: str(percent)} for place, percent in asked.items() if percent},
            removed=self.resources,
        )
