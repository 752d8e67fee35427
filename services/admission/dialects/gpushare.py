"""gpushare (Alibaba): `aliyun.com/gpu-mem` of one device, in GiB or by setting in MiB; `aliyun.com/gpu-count` spreads
that total evenly over several.

The unit is the installation's there too (the device plugin's --memory-unit), so a pod alone cannot say it.
"""

from __future__ import annotations

from services.admission.dialects.base import Json, Manifest, Setting, Translation, amount, containers, where_of
from shared.model import names
from shared.model.request import RequestError

MEMORY = "aliyun.com/gpu-mem"
COUNT = "aliyun.com/gpu-count"
_SUFFIX = {"GiB": "Gi", "MiB": "Mi"}
_MOST_MIB = 1 << 24
"""16 TiB. More than that in one container is a quantity that was written with a unit ("3Gi" would be 3221225472
GiB)."""


class Gpushare:
    name = "gpushare"
    resources = frozenset({MEMORY, COUNT})
    schedulers: tuple[str, ...] = ("gpushare-scheduler",)

    def speaks(self, manifest: Manifest, setting: Setting) -> bool:  # noqa: ARG002 - the form is the protocol's
        return MEMORY in manifest.named or COUNT in manifest.named

    def translate(self, pod: Json, setting: Setting) -> Translation:
        found = {place: asked for place, container in containers(pod) if (asked := self._container(container, setting))}
        # No isolation, by design: the container is told its share and has to respect it.
        annotations = {names.ANNOTATION_ISOLATION: "soft", names.ANNOTATION_DIALECT: self.name}
        return Translation(amounts=found, removed=self.resources, annotations=annotations)

    def _container(self, container: Json, setting: Setting) -> dict[str, str]:
        memory, count = amount(container, MEMORY), amount(container, COUNT)
        if memory * (1024 if setting.gpushare_unit == "GiB" else 1) > _MOST_MIB:
            raise RequestError(
                "foreign-unit",
                f"{where_of(container)}: {MEMORY} is {memory} {setting.gpushare_unit}; it is "
                f"a plain number of {setting.gpushare_unit} here, written without a unit",
            )
        asked = {names.RESOURCE_GPU: str(count)} if count else {}
        return asked | ({names.RESOURCE_GPU_MEMORY: f"{memory}{_SUFFIX[setting.gpushare_unit]}"} if memory else {})
