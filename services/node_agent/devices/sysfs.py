"""Reads PCI devices from sysfs: their place, their NUMA node, and the network cards."""

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
    """Reads sysfs. Never raises: what the kernel does not show counts as unknown."""

    def __init__(self, root: Path, pods_per_nic: int = 1) -> None:
        self._root, self._pods_per_nic = root, pods_per_nic

    def path(self, bus_id: str) -> PciPath:
        """The path of a PCI device by its NVML bus id; empty if there is none."""
        return self._path(self._root / "bus" / "pci" / "devices" / kernel_bus_id(bus_id))

    def numa_node(self, bus_id: str) -> int:
        """The NUMA node of a device. -1: unknown, or the machine has only one."""
        return self._numa(self._root / "bus" / "pci" / "devices" / kernel_bus_id(bus_id))

    def nics(self, gpus: Mapping[int, str], numa: Mapping[int, int]) -> tuple[Nic, ...]:
        """The network cards, RDMA devices first. An Ethernet interface of a card that is an RDMA device is not listed
        again.

        `gpus` are PCI bus ids by GPU index, `numa` their NUMA nodes.
        """
        paths = {index: self.path(bus_id) for index, bus_id in gpus.items()}
        found: dict[PciPath, Nic] = {}
        verbs = self._verbs()
        for kind in ("infiniband", "net"):
            for link in self._listed(self._root / "class" / kind):
                device = link / "device"
                path = self._path(device)
                if not path or path in found:
                    continue  # a virtual interface, or another interface of a card that is listed already
                node = self._numa(device)
                near = {
                    index: _level(path, other, node, numa.get(index, -1)) for index, other in paths.items() if other
                }
                found[path] = Nic(
                    name=link.name,
                    numa_node=node,
                    pcie={i: level for i, level in near.items() if level != "system"},
                    verbs=verbs.get(link.name, "") if kind == "infiniband" and self._is_active(link) else "",
                    pods=self._pods_per_nic,
                )
        return tuple(sorted(found.values(), key=lambda nic: nic.name))

    def _verbs(self) -> dict[str, str]:
        """The device nodes for verbs under /dev/infiniband, by the name of the RDMA device (kernel,
        drivers/infiniband/core/uverbs_main.c: the attribute `ibdev`)."""
        found = {}
        for link in self._listed(self._root / "class" / "infiniband_verbs"):
            try:
                found[(link / "ibdev").read_text().strip()] = link.name
            except OSError:
                continue  # abi_version beside them, or a device that is going
        return found

    def _is_active(self, device: Path) -> bool:
        """Whether a port of an RDMA device is up; its state reads "4: ACTIVE"."""
        for port in self._listed(device / "ports"):
            try:
                if "ACTIVE" in (port / "state").read_text():
                    return True
            except OSError:
                continue
        return False

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
    """Converts a bus id: NVML writes eight digits of the domain, the kernel four (00000000:18:00.0 is 0000:18:00.0)."""
    domain, _, rest = bus_id.lower().partition(":")
    return f"{domain[-4:] if domain.startswith('0000') else domain}:{rest}"


def _level(a: PciPath, b: PciPath, a_node: int, b_node: int) -> PcieLevel:
    """The level of the nearest common ancestor, in NVML's terms (nvmlGpuTopologyLevel_t)."""
    common = 0
    while common < min(len(a), len(b)) and a[common] == b[common]:
        common += 1
    if common == 0:
        return "node" if a_node == b_node and a_node >= 0 else "system"
    if common == 1:
        return "hostbridge"
    below = max(len(a), len(b)) - common
    # Below one switch each device is behind a port of its own; functions of one device share a port.
    return "single" if below <= 2 else "multiple"
