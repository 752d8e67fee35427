"""What a pair of GPUs is worth: in bandwidth, and in go-gpuallocator's points.

NVLink's figures are NVIDIA's: 20 GB/s a link and direction for NVLink 1 (P100), 25 for 2 to 4 (V100, A100, H100), 50
for 5 (B200); GA10x boards have 14. PCIe's are what an x16 slot of the generation carries, less what each step away
costs; on a PCIe 5 machine p2pBandwidthLatencyTest shows 52 to 55 GB/s within a socket and 46 to 50 across. They need
only be right in order and about in size: choices compare them.
"""

from __future__ import annotations

from shared.model.generations import capability_tenths
from shared.model.gpu import Gpu, Link, PcieLevel

_NVLINK_MB_S = ((60, 20_000), (70, 25_000), (86, 14_000), (90, 25_000), (100, 50_000))
"""By the minimum compute capability in tenths."""
_PCIE_MB_S = ((60, 12_500), (80, 25_000), (90, 53_000))
_PCIE_MB_S_OF_ADA = 25_000
_PERCENT: dict[PcieLevel, int] = {
    "internal": 100,
    "single": 100,
    "multiple": 98,
    "hostbridge": 95,
    "node": 93,
    "system": 85,
}
_STAGED_PERCENT = 50
"""Without peer access data goes through the host's memory: two copies for one."""
_C2C_MB_S = 200_000
"""Through the CPU that both are joined to by NVLink-C2C, 450 GB/s a direction each, at a little under half of it."""

_POINTS: dict[PcieLevel, int] = {
    "internal": 60,
    "single": 50,
    "multiple": 40,
    "hostbridge": 30,
    "node": 20,
    "system": 10,
}
_POINTS_A_LINK = 100
_MOST_LINKS = 18


def pair_mb_s(a: Gpu, b: Gpu, link: Link) -> int:
    """One-way bandwidth between two GPUs in MB/s, by the slower of both where their generations differ."""
    tenths = min(capability_tenths(a.compute_capability) or 90, capability_tenths(b.compute_capability) or 90)
    if link.nvlinks:
        return link.nvlinks * _at(_NVLINK_MB_S, tenths)
    if a.c2c and b.c2c and a.numa_node == b.numa_node:
        return _C2C_MB_S
    lane = _PCIE_MB_S_OF_ADA if tenths == 89 else _at(_PCIE_MB_S, tenths)
    return lane * _PERCENT[link.pcie] // 100 * (100 if link.p2p else _STAGED_PERCENT) // 100


def pair_score(link: Link) -> int:
    """As NVIDIA's go-gpuallocator counts: the PCIe level, and 100 for each NVLink."""
    return _POINTS[link.pcie] + _POINTS_A_LINK * min(link.nvlinks, _MOST_LINKS)


def _at(table: tuple[tuple[int, int], ...], tenths: int) -> int:
    return next((value for least, value in reversed(table) if tenths >= least), table[0][1])
