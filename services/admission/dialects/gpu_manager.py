"""gpu-manager (Tencent): `tencent.com/vcuda-core`, 100 of which are one GPU, and `vcuda-memory` in units of 256 MiB.

As its README has it: below 100 the core is a percentage of one GPU, from 100 on a multiple of 100 is a number of whole
GPUs, whatever the memory (pkg/types/types.go: MemoryBlockSize).
"""

from __future__ import annotations

from services.admission.dialects.base import (
    Json,
    Manifest,
    Setting,
    Translation,
    amount,
    containers,
    where_of,
)
from shared.model import names
from shared.model.request import RequestError

CORE = "tencent.com/vcuda-core"
MEMORY = "tencent.com/vcuda-memory"
LIMIT = "tencent.com/vcuda-core-limit"
_WHOLE = 100
_BLOCK_MIB = 256


class GpuManager:
    name = "gpu-manager"
    resources = frozenset((CORE, MEMORY))
    schedulers: tuple[str, ...] = ()

    def speaks(self, manifest: Manifest, setting: Setting) -> bool:  # noqa: ARG002 - the form is the protocol's
        return not manifest.named.isdisjoint(self.resources)

    def translate(self, pod: Json, setting: Setting) -> Translation:  # noqa: ARG002 - the form is the protocol's
        limit = ((pod.get("metadata") or {}).get("annotations") or {}).get(LIMIT)
        found = {
            place: _container(container, None if limit is None else str(limit)) for place, container in containers(pod)
        }
        return Translation(
            amounts={place: asked for place, asked in found.items() if asked},
            removed=self.resources,
            annotations={names.ANNOTATION_DIALECT: self.name},
        )


def _container(container: Json, limit: str | None) -> dict[str, str]:
    where = where_of(container)
    core, memory = amount(container, CORE), amount(container, MEMORY)
    if not core and not memory:
        return {}
    if not core or (core % _WHOLE and core > _WHOLE):
        raise RequestError(
            "foreign-amount",
            f"{where}: {CORE} is {core}; it is below {_WHOLE} for a part of one GPU, or a multiple of {_WHOLE} for "
            f"whole ones. A share by memory alone is {names.RESOURCE_GPU_MEMORY}",
        )
    if core >= _WHOLE:
        return {names.RESOURCE_GPU: str(core // _WHOLE)}
    if limit is not None and limit != str(core):
        raise RequestError(
            "foreign-field",
            f"annotation {LIMIT} is {limit!r} beside {CORE} {core} of {where}: a share in Kerf has the compute that it "
            f"reserves. Write the same number in both, or {names.RESOURCE_GPU_COMPUTE}",
        )
    if not memory:
        raise RequestError(
            "foreign-amount",
            f"{where}: a part of a GPU by {CORE} needs {MEMORY} (units of {_BLOCK_MIB} MiB); "
            f"{names.RESOURCE_GPU_COMPUTE}: {core} alone gets the same part of the memory",
        )
    return {names.RESOURCE_GPU_MEMORY: f"{memory * _BLOCK_MIB}Mi", names.RESOURCE_GPU_COMPUTE: str(core)}
