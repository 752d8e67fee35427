"""What the kernel says of PCI devices: where they stand, on which NUMA node, and which network cards there are."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from shared.model.gpu import Nic, PcieLevel

_DEVICE = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_ROOT = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")

PciPath = tuple[str, ...]
"""A host bridge and the bridges below it, down to the device: ("pci0000:15", "0000:15:01.0", "0000:16:00.0")."""


class Sysfs:
    """Never raises: what the kernel does not show is not known."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def path(self, bus_id: str) -> PciPath:
        """Of a PCI device by its NVML bus id; empty where there is none."""
        return self._path(self._root / "bus" / "pci" / "devices" / kernel_bus_id(bus_id))

    def numa_node(self, bus_id: str) -> int:
        """-1: not known, or the machine has one."""
        return self._numa(self._root / "bus" / "pci" / "devices" / kernel_bus_id(bus_id))

    def nics(self, gpus: Mapping[int, str], numa: Mapping[int, int]) -> tuple[Nic, ...]:
        """Network cards, RDMA devices first; an Ethernet interface of a card that is one of those is not told again.
        `gpus` are PCI bus ids by index, `numa` their NUMA nodes."""
        paths = {index: self.path(bus_id) for index, bus_id in gpus.items()}
        found: dict[PciPath, Nic] = {}
        for kind in ("infiniband", "net"):
            for link in self._listed(self._root / "class" / kind):
                device = link / "device"
                path = self._path(device)
                if not path or path in found:
                    continue  # a virtual interface, or the other face of one that stands already
                node = self._numa(device)
                near = {
                    index: _level(path, other, node, numa.get(index, -1)) for index, other in paths.items() if other
                }
                found[path] = Nic(
                    name=link.name, numa_node=node, pcie={i: level for i, level in near.items() if level != "system"}
                )
        return tuple(sorted(found.values(), key=lambda nic: nic.name))

    def _listed(self, folder: Path) -> list[Path]:
        try:
            return sorted(folder.iterdir())
        except OSError:
            return []  # no such class of devices on this machine

    def _path(self, link: Path) -> PciPath:
        try:
            parts = link.resolve(strict=True).parts
        except OSError:
            return ()
        return tuple(part for part in parts if _ROOT.fullmatch(part) or _DEVICE.fullmatch(part))

    def _numa(self, device: Path) -> int:
        try:
            return int((device / "numa_node").read_text())
        except (OSError, ValueError):
            return -1


def kernel_bus_id(bus_id: str) -> str:
    """NVML writes a domain of eight digits, the kernel of four: 00000000:18:00.0 is 0000:18:00.0."""
    domain, _, rest = bus_id.lower().partition(":")
    return f"{domain[-4:] if domain.startswith('0000') else domain}:{rest}"


def _level(a: PciPath, b: PciPath, a_node: int, b_node: int) -> PcieLevel:
    """The nearest common ancestor, in NVML's words (nvmlGpuTopologyLevel_t)."""
    common = 0
    while common < min(len(a), len(b)) and a[common] == b[common]:
        common += 1
    if common == 0:
        return "node" if a_node == b_node and a_node >= 0 else "system"
    if common == 1:
        return "hostbridge"
    below = max(len(a), len(b)) - common
    # Below one switch each device stands behind a port of its own; functions of one device have the same port.
    return "single" if below <= 2 else "multiple"
