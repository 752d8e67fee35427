"""The foreign dialects that admission reads. One line each. Other packages add dialects by the entry point
`kerf.dialects`."""

from __future__ import annotations

from functools import cache

from services.admission.dialects.base import Dialect, Manifest, Setting, Translation, Vgpu
from services.admission.dialects.gpu_manager import GpuManager
from services.admission.dialects.gpushare import Gpushare
from services.admission.dialects.hami import Hami
from services.admission.dialects.kai import Kai
from services.admission.dialects.koordinator import Koordinator
from services.admission.dialects.nos import Nos
from services.admission.dialects.nvidia import Nvidia
from services.admission.dialects.nvidia_mig import NvidiaMig
from services.admission.dialects.volcano import Volcano
from shared import plugins
from shared.model import names

BUILT_IN: tuple[Dialect, ...] = (
    Gpushare(),
    Hami(),
    Kai(),
    Volcano(),
    Koordinator(),
    GpuManager(),
    Nos(),
    Nvidia(),
    NvidiaMig(),
)
"""The first that a pod speaks reads it: plain NVIDIA comes last, for others read nvidia.com/gpu too."""


@cache
def dialects() -> tuple[Dialect, ...]:
    """The built-in dialects, then those of plug-ins. Raises plugins.PluginError."""
    found = plugins.load("kerf.dialects", Dialect, (dialect.name for dialect in BUILT_IN))  # type: ignore[type-abstract]
    owners = {resource: dialect.name for dialect in reversed(BUILT_IN) for resource in dialect.resources}
    for dialect in found:
        for resource in sorted(dialect.resources):
            owner = "kerf" if names.is_gpu_resource(resource) else owners.setdefault(resource, dialect.name)
            if owner != dialect.name:
                problem = f"its resource {resource} is that of dialect {owner}; a resource has one dialect"
                raise plugins.refuse("kerf.dialects", dialect.name, problem)
    return (*BUILT_IN, *found)


@cache
def in_force(read: tuple[str, ...] | None) -> tuple[tuple[Dialect, ...], frozenset[str]]:
    """The dialects of these names (None: all), and every resource that one of them reads."""
    chosen = tuple(dialect for dialect in dialects() if read is None or dialect.name in read)
    return chosen, frozenset().union(*(dialect.resources for dialect in chosen))


__all__ = ["BUILT_IN", "Dialect", "Manifest", "Setting", "Translation", "Vgpu", "dialects", "in_force"]
