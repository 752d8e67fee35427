"""Koordinator: `koordinator.sh/gpu-core` and `gpu-memory-ratio` (percent) or `gpu-memory` (bytes) in all, divided over
`koordinator.sh/gpu.shared` GPUs.

As its scheduler validates and divides them (pkg/scheduler/plugins/deviceshare/utils.go, devicehandler_gpu.go): without
gpu.shared a ratio above 100 is a number of whole GPUs, and `koordinator.sh/gpu` is both core and ratio. Koordinator
adds up the pod's containers, which then see all of its GPUs; in Kerf each container gets what it names itself.
"""

from __future__ import annotations

from services.admission.dialects.base import (
    Json,
    Manifest,
    Setting,
    Translation,
    amount,
    containers,
    refuse_annotations,
    where_of,
    written,
)
from shared.model import names
from shared.model.request import RequestError

GPU = "koordinator.sh/gpu"
SHARED = "koordinator.sh/gpu.shared"
CORE = "koordinator.sh/gpu-core"
MEMORY = "koordinator.sh/gpu-memory"
RATIO = "koordinator.sh/gpu-memory-ratio"
_ISOLATION = "koordinator.sh/gpu-isolation-provider"
_NOT_A_VICTIM = "scheduling.koordinator.sh/disable-preemptible"
_ALL = 100
_TOPOLOGY = f"write {names.ANNOTATION_TOPOLOGY}: required for GPUs that reach each other peer to peer, or preferred"
_REFUSED = {
    "scheduling.koordinator.sh/device-allocate-hint": _TOPOLOGY,
    "scheduling.koordinator.sh/device-joint-allocate": _TOPOLOGY,
    "scheduling.koordinator.sh/gpu-partition-spec": _TOPOLOGY,
}


class Koordinator:
    name = "koordinator"
    resources = frozenset((GPU, SHARED, CORE, MEMORY, RATIO))
    schedulers: tuple[str, ...] = ("koord-scheduler",)

    def speaks(self, manifest: Manifest, setting: Setting) -> bool:  # noqa: ARG002 - the form is the protocol's
        return not manifest.named.isdisjoint(self.resources)

    def translate(self, pod: Json, setting: Setting) -> Translation:  # noqa: ARG002 - the form is the protocol's
        refuse_annotations(pod, _REFUSED)
        labels = (pod.get("metadata") or {}).get("labels") or {}
        provider = labels.get(_ISOLATION, "HAMi-core")
        if provider != "HAMi-core":
            raise RequestError(
                "foreign-field",
                f"label {_ISOLATION} is {provider!r}, which Kerf does not know; leave it out, and write "
                f"{names.ANNOTATION_ISOLATION}: firm for a share that is kept to its limits",
            )
        found = {place: _container(container) for place, container in containers(pod)}
        never = {names.ANNOTATION_PREEMPTIBLE: "false"} if labels.get(_NOT_A_VICTIM) == "true" else {}
        return Translation(
            amounts={place: asked for place, asked in found.items() if asked},
            removed=self.resources,
            annotations=never | {names.ANNOTATION_DIALECT: self.name},
        )


def _container(container: Json) -> dict[str, str]:
    where = where_of(container)
    both, shared, core, memory, ratio = (amount(container, name) for name in (GPU, SHARED, CORE, MEMORY, RATIO))
    if not (both or shared or core or memory or ratio):
        return {}
    if both and (shared or core or memory or ratio):
        raise RequestError("foreign-amount", f"{where}: {GPU} is both core and memory; write nothing beside it")
    core, ratio = both or core, both or ratio
    if bool(memory) == bool(ratio):
        raise RequestError(
            "foreign-amount",
            f"{where}: it names {'both' if memory else 'neither of'} {MEMORY} and {RATIO}; write one of them. In "
            f"Kerf's words {names.RESOURCE_GPU_MEMORY} or {names.RESOURCE_GPU_MEMORY_PERCENT}",
        )
    count = shared or (ratio // _ALL if ratio > _ALL and ratio % _ALL == 0 else 1)
    for resource, percent in ((CORE, core), (RATIO, ratio)):
        if percent % count or percent // count > _ALL:
            raise RequestError(
                "foreign-amount",
                f"{where}: {resource} is {percent} over {count} GPU(s); it is the total in percent, at most {_ALL} of "
                f"each GPU and the same of each. The number of GPUs is {SHARED}",
            )
    if memory % count:
        raise RequestError(
            "foreign-amount", f"{where}: {MEMORY} is {memory} bytes, which cannot be divided over {count} GPUs"
        )
    gpus = {names.RESOURCE_GPU: str(count)}
    if ratio == core == _ALL * count:
        return gpus
    share = (
        {names.RESOURCE_GPU_MEMORY: str(written(container, MEMORY))}
        if memory
        else {names.RESOURCE_GPU_MEMORY_PERCENT: str(ratio)}
    )
    return gpus | share | ({names.RESOURCE_GPU_COMPUTE: str(core)} if core else {})
