"""Network cards and their distance to GPUs, from a tree like the kernel's."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.node_agent.devices.sysfs import Sysfs, kernel_bus_id
from shared.model.gpu import Nic

SWITCH = "pci0000:15/0000:15:01.0/0000:16:00.0"
"""A root port and the upstream port of a switch below it."""


class Kernel:
    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "bus" / "pci" / "devices").mkdir(parents=True)

    def device(self, path: str, numa: int = 0) -> Path:
        """Creates a PCI device at this path of bridges, linked as the kernel links it."""
        made = self.root / "devices" / path
        made.mkdir(parents=True, exist_ok=True)
        (made / "numa_node").write_text(f"{numa}\n")
        link = self.root / "bus" / "pci" / "devices" / made.name
        if not link.exists():
            link.symlink_to(made)
        return made

    def nic(self, kind: str, name: str, path: str, numa: int = 0) -> None:
        device = self.device(path, numa)
        face = device / kind / name
        face.mkdir(parents=True)
        (face / "device").symlink_to(device)
        self.root.joinpath("class", kind).mkdir(parents=True, exist_ok=True)
        self.root.joinpath("class", kind, name).symlink_to(face)


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    """One GPU below a switch, on NUMA node 0."""
    made = Kernel(tmp_path)
    made.device(f"{SWITCH}/0000:17:00.0/0000:18:00.0")
    return made


def nics(kernel: Kernel) -> tuple[Nic, ...]:
    return Sysfs(kernel.root).nics({0: "00000000:18:00.0"}, {0: 0})


@pytest.mark.parametrize(
    ("path", "numa", "level"),
    [
        (f"{SWITCH}/0000:17:01.0/0000:19:00.0", 0, "single"),
        (f"{SWITCH}/0000:17:01.0/0000:1a:00.0/0000:1b:02.0/0000:1c:00.0", 0, "multiple"),
        ("pci0000:15/0000:15:03.0/0000:30:00.0", 0, "hostbridge"),
        ("pci0000:40/0000:40:01.0/0000:41:00.0", 0, "node"),
        ("pci0000:80/0000:80:01.0/0000:81:00.0", 1, None),
        ("pci0000:80/0000:80:01.0/0000:81:00.0", -1, None),
    ],
    ids=["one switch", "several switches", "a host bridge", "a NUMA node", "another NUMA node", "unknown"],
)
def test_the_pcie_level_is_the_nearest_common_ancestor(kernel: Kernel, path: str, numa: int, level: str | None) -> None:
    kernel.nic("infiniband", "mlx5_0", path, numa)
    assert nics(kernel) == (Nic(name="mlx5_0", numa_node=numa, pcie={} if level is None else {0: level}),)  # type: ignore[dict-item]


def test_a_card_with_two_interfaces_is_listed_once_as_the_rdma_device(kernel: Kernel) -> None:
    kernel.nic("net", "eth0", "pci0000:40/0000:40:01.0/0000:41:00.0")
    kernel.nic("infiniband", "mlx5_0", "pci0000:40/0000:40:01.0/0000:41:00.0")
    kernel.nic("net", "eth1", "pci0000:40/0000:40:01.0/0000:41:00.1")
    assert [nic.name for nic in nics(kernel)] == ["eth1", "mlx5_0"]


def test_an_rdma_device_with_an_active_port_has_its_device_node_for_verbs(kernel: Kernel) -> None:
    """The number of the node need not be that of the device. An Ethernet interface has none."""
    kernel.nic("infiniband", "mlx5_0", f"{SWITCH}/0000:17:01.0/0000:19:00.0")
    kernel.nic("net", "eth0", "pci0000:40/0000:40:01.0/0000:41:00.0")
    verbs = kernel.root / "class" / "infiniband_verbs"
    for name, device in (("uverbs0", "mlx5_7"), ("uverbs3", "mlx5_0")):
        (verbs / name).mkdir(parents=True)
        (verbs / name / "ibdev").write_text(f"{device}\n")
    (verbs / "abi_version").write_text("6\n")
    port = kernel.root / "class" / "infiniband" / "mlx5_0" / "ports" / "1"
    port.mkdir(parents=True)
    for state, node in (("1: DOWN", ""), ("4: ACTIVE", "uverbs3")):
        (port / "state").write_text(f"{state}\n")
        assert {nic.name: nic.verbs for nic in nics(kernel)} == {"eth0": "", "mlx5_0": node}


def test_how_many_pods_may_have_a_card_is_the_nodes_setting(kernel: Kernel) -> None:
    kernel.nic("infiniband", "mlx5_0", f"{SWITCH}/0000:17:01.0/0000:19:00.0")
    (found,) = Sysfs(kernel.root, 8).nics({0: "00000000:18:00.0"}, {0: 0})
    assert found.pods == 8


def test_virtual_interfaces_are_not_listed(kernel: Kernel) -> None:
    kernel.root.joinpath("class", "net", "lo").mkdir(parents=True)
    assert nics(kernel) == ()


def test_a_machine_without_sysfs_has_no_cards(tmp_path: Path) -> None:
    shown = Sysfs(tmp_path / "nowhere")
    assert (
        shown.nics({0: "00000000:18:00.0"}, {}),
        shown.numa_node("00000000:18:00.0"),
        shown.path("00000000:18:00.0"),
    ) == ((), -1, ())


def test_the_numa_node_of_a_device(kernel: Kernel) -> None:
    kernel.device("pci0000:80/0000:80:01.0/0000:81:00.0", 1)
    assert [Sysfs(kernel.root).numa_node(f"00000000:{bus}:00.0") for bus in ("18", "81")] == [0, 1]


@pytest.mark.parametrize(
    ("nvml", "kernels"),
    [("00000000:3B:00.0", "0000:3b:00.0"), ("0000:3b:00.0", "0000:3b:00.0"), ("00010000:01:00.0", "00010000:01:00.0")],
)
def test_bus_ids_are_converted_from_nvml_to_the_kernel(nvml: str, kernels: str) -> None:
    """A domain beyond four digits, as behind Intel's VMD, stays as it is."""
    assert kernel_bus_id(nvml) == kernels
