"""nos (Nebuly): `nvidia.com/gpu-<N>gb: 1` is a slice of one GPU with N GB of memory, its compute shared by all.

As docs/en/docs/dynamic-gpu-partitioning/getting-started-mps.md of nebuly-ai/nos has it. There the limit is MPS' own
(CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=<N>G), whose G is 2^30 bytes. A container has one slice at most. hostIPC and the
user of the MPS server are not needed here, and are left as they are.
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

_MOST_GB = 1024
SIZES = {f"nvidia.com/gpu-{gb}gb": gb for gb in range(1, _MOST_GB + 1)}


class Nos:
    name = "nos"
    resources = frozenset(SIZES)
    schedulers: tuple[str, ...] = ("nos-scheduler",)

    def speaks(self, manifest: Manifest, setting: Setting) -> bool:  # noqa: ARG002 - the form is the protocol's
        return not manifest.named.isdisjoint(self.resources)

    def translate(self, pod: Json, setting: Setting) -> Translation:  # noqa: ARG002 - the form is the protocol's
        found = {place: _container(container) for place, container in containers(pod)}
        return Translation(
            amounts={place: asked for place, asked in found.items() if asked},
            removed=self.resources,
            annotations={names.ANNOTATION_DIALECT: self.name},
        )


def _container(container: Json) -> dict[str, str]:
    resources = container.get("resources") or {}
    named = {name for half in ("limits", "requests") for name in resources.get(half) or {} if name in SIZES}
    slices = {name: count for name in sorted(named) if (count := amount(container, name))}
    if sum(slices.values()) > 1:
        raise RequestError(
            "foreign-amount",
            f"{where_of(container)} asks for {', '.join(f'{count} {name}' for name, count in slices.items())}; a "
            f"container has one slice, so ask for a larger one, or for {names.RESOURCE_GPU_MEMORY} over several GPUs",
        )
    size = next((SIZES[name] for name in slices), 0)
    return {names.RESOURCE_GPU_MEMORY: f"{size}Gi"} if size else {}
