"""NVIDIA's mixed MIG strategy: `nvidia.com/mig-1g.10gb: N` is N instances of that profile. Read only where
nvidia.com/gpu is read too, for NVIDIA's own plugin serves the same names."""

from __future__ import annotations

from services.admission.dialects.base import Json, Manifest, Setting, Translation, amount, containers, written_resources
from shared.model import names
from shared.model.mig import PROFILES

_PREFIX = "nvidia.com/mig-"
RESOURCES = frozenset(_PREFIX + profile.replace("+", ".") for profile in PROFILES)


class NvidiaMig:
    name = "nvidia-mig"
    resources = RESOURCES
    schedulers: tuple[str, ...] = ()

    def speaks(self, manifest: Manifest, setting: Setting) -> bool:
        return setting.plain_nvidia and not manifest.named.isdisjoint(self.resources)

    def translate(self, pod: Json, setting: Setting) -> Translation:  # noqa: ARG002 - the form is the protocol's
        asked = {place: instances(container) for place, container in containers(pod)}
        return Translation(amounts={place: of for place, of in asked.items() if of}, removed=self.resources)


def instances(container: Json) -> dict[str, str]:
    """The container's instances in Kerf's resources."""
    return {
        names.PREFIX_MIG + name.removeprefix(_PREFIX): str(count)
        for name in sorted(RESOURCES & written_resources(container))
        if (count := amount(container, name))
    }
