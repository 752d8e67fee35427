"""The machines of bench/data/gpu_topologies.json as inventories."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from shared.model.gpu import Gpu, Inventory, Link, Nic, PcieLevel
from shared.model.gpu_models import known_model

FILE = Path(__file__).parent / "data" / "gpu_topologies.json"

_LEVELS: dict[str, PcieLevel] = {
    "PSB": "internal", "PIX": "single", "PXB": "multiple", "PHB": "hostbridge", "NODE": "node", "SYS": "system",
}  # fmt: skip
_CAPABILITIES = {"sm_120": "12.0"}
"""Of models that are named in no data sheet's way."""


def machines(path: Path = FILE) -> dict[str, Inventory]:
    """By name."""
    return {entry["name"]: inventory(entry) for entry in json.loads(path.read_text())["topologies"]}


def inventory(entry: dict[str, Any]) -> Inventory:
    """One machine as its agent would report it. What lies under an NVLink is taken from NUMA where the file does not
    say."""
    matrix, count = entry["matrix"], len(entry["matrix"])
    numa = entry.get("numa") or [-1] * count
    under = entry.get("pcie_under_nvlink")
    gpus = tuple(
        Gpu(
            uuid=f"{entry['name']}-{i}", index=i, model=entry["gpu_model"].replace(" ", "-"), memory_mib=81_920,
            numa_node=numa[i], compute_capability=_capability(entry["gpu_model"])
        )
        for i in range(count)
    )  # fmt: skip
    links = tuple(
        _link(a, b, matrix[a][b], under[a][b] if under else None, same_numa=numa[a] == numa[b])
        for a in range(count)
        for b in range(a + 1, count)
    )
    nics = tuple(
        Nic(name=name, pcie={i: _LEVELS[level] for i, level in enumerate(levels) if level in _LEVELS})
        for name, levels in (entry.get("gpu_nic") or {}).items()
        if isinstance(levels, list)
    )
    return Inventory(node=entry["name"], boot_id="bench", gpus=gpus, links=links, nics=nics)


def _link(a: int, b: int, cell: str, under: str | None, *, same_numa: bool) -> Link:
    if not cell.startswith("NV"):
        return Link(a=a, b=b, pcie=_LEVELS[cell])
    return Link(a=a, b=b, nvlinks=int(cell[2:]), pcie=_LEVELS.get(under or "", "node" if same_numa else "system"))


def _capability(model: str) -> str:
    known = known_model(model)
    return known.capability if known else next((c for name, c in _CAPABILITIES.items() if name in model), "")
