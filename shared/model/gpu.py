"""GPUs as their node reports them: what they are, how they are linked, what state they are in."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

import msgspec

from shared.model.mig import MigInstance
from shared.model.network import RemoteAbility
from shared.model.strategies import ALWAYS_OFFERED, StrategyName

GpuState = Literal["healthy", "suspect", "unhealthy", "draining"]
"""Only a healthy GPU takes new slices. Suspect: a sign of trouble, not yet condemned. Draining: cordoned by people."""

MOST_MIB = 1 << 30
"""A pebibyte: no GPU has it, and sums of many stay far below what the book's arrays hold."""
MOST_GPUS = 1024
MOST_GENERATION = (1 << 63) - 1
_MOST_NUMBER = (1 << 31) - 1
_CPUS = re.compile(r"(?:[0-9]{1,5}(?:-[0-9]{1,5})?(?:,[0-9]{1,5}(?:-[0-9]{1,5})?)*)?")


def checked(what: str, amount: int, most: int = MOST_MIB) -> None:
    """Raises ValueError where an amount cannot be one; a decoder makes a ValidationError of it."""
    if not 0 <= amount <= most:
        raise ValueError(f"{what} is {amount}; it must be between 0 and {most}")


def _checked_number(what: str, number: int) -> None:
    """Raises ValueError where a number of something on a node cannot be one. -1: it is not known."""
    if not -1 <= number <= _MOST_NUMBER:
        raise ValueError(f"{what} is {number}; it must be between -1 and {_MOST_NUMBER}")


class Gpu(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One physical GPU of a node, by the UUID that outlives reboots."""

    uuid: str
    index: int
    """NVML's index on the node, which is PCI order."""
    model: str
    """NVML's product name with spaces as dashes, as GPU feature discovery writes it: "NVIDIA-H200"."""
    memory_mib: int
    state: GpuState = "healthy"
    reason: str = ""
    """Why the state is not healthy, in a sentence."""
    compute_capability: str = ""
    pci_bus_id: str = ""
    minor: int = -1
    """N of its device node /dev/nvidiaN, which need not be the index. -1: not known."""
    numa_node: int = -1
    cpus: str = ""
    """The CPUs near it, as a list such as "0-31,64-95"."""
    c2c: bool = False
    """Joined to its CPU by NVLink-C2C instead of PCIe, as in Grace machines."""
    mig_enabled: bool = False
    """In MIG mode: never given whole, only as instances."""
    mig_on_demand: bool = False
    """The agent makes and removes instances as grants say. Otherwise the layout is fixed, and offers `mig_instances`.
    """
    mig_instances: tuple[MigInstance, ...] = ()
    """Those that exist. Of a GPU that is cut on demand, only those that are not the agent's own."""
    foreign_mib: int = 0
    """Memory held by processes that are not ours."""
    to_device_mb_s: int = 0
    """Measured bandwidth of pinned copies from the host, in MB/s; 0: not measured."""
    from_device_mb_s: int = 0
    """The same to the host."""

    def __post_init__(self) -> None:
        if not self.uuid:
            raise ValueError("a GPU's uuid is empty")
        checked("memory_mib", self.memory_mib)
        checked("foreign_mib", self.foreign_mib)
        checked("to_device_mb_s", self.to_device_mb_s)
        checked("from_device_mb_s", self.from_device_mb_s)
        _checked_number("index", self.index)
        _checked_number("minor", self.minor)
        _checked_number("numa_node", self.numa_node)
        if not _CPUS.fullmatch(self.cpus):
            raise ValueError(f"cpus is {self.cpus[:80]!r}; it must be a list such as 0-31,64-95")


PcieLevel = Literal["internal", "single", "multiple", "hostbridge", "node", "system"]
"""The nearest common ancestor on PCIe, in NVML's terms, nearest first: one board, one switch, several switches, a host
bridge, several bridges of one NUMA node, another NUMA node."""


class Link(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How two GPUs of a node reach each other, by index, a < b. Absent pairs cross sockets without peer access."""

    a: int
    b: int
    nvlinks: int = 0
    """Active NVLinks between the two; through an NVSwitch fabric, the links of the lesser one."""
    pcie: PcieLevel = "system"
    p2p: bool = True

    def __post_init__(self) -> None:
        _checked_number("a", self.a)
        _checked_number("b", self.b)
        _checked_number("nvlinks", self.nvlinks)


class Nic(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A network card for traffic between nodes."""

    name: str
    numa_node: int = -1
    pcie: dict[int, PcieLevel] = {}
    """How near each GPU is, by its index; a GPU that is not named is on another NUMA node."""
    verbs: str = ""
    """Its device node for RDMA under /dev/infiniband, such as uverbs0. Empty: it is no RDMA device, or has no active
    port; no pod is given it."""
    pods: int = 1
    """How many pods may have it at the same time."""

    def __post_init__(self) -> None:
        _checked_number("numa_node", self.numa_node)
        _checked_number("pods", self.pods)
        for index in self.pcie:
            _checked_number("the index of a GPU", index)


class HostMemory(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a node's host has for the GPU memory of suspended pods."""

    park_mib: int = 0
    """So much GPU memory may be on the host at the same time, of all pods together; 0: none."""
    out_mib_per_s: int = 0
    """How fast the node has copied the memory of a GPU there; 0: it has not yet."""
    back_mib_per_s: int = 0

    def __post_init__(self) -> None:
        checked("park_mib", self.park_mib)
        checked("out_mib_per_s", self.out_mib_per_s)
        checked("back_mib_per_s", self.back_mib_per_s)


class Era(NamedTuple):
    """What an agent remembers of its node begins with it: a boot, and a checkpoint that was not lost meanwhile."""

    boot_id: str
    checkpoint_id: str


NO_ERA = Era("", "")


class Inventory(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A node agent's report of its node."""

    node: str
    boot_id: str
    generation: int = 0
    """Grows with every change under one boot and checkpoint id."""
    gpus: tuple[Gpu, ...] = ()
    links: tuple[Link, ...] = ()
    nics: tuple[Nic, ...] = ()
    strategies: tuple[StrategyName, ...] = ALWAYS_OFFERED
    driver_version: str = ""
    cuda_version: str = ""
    clique: str = ""
    """The NVLink domain that reaches beyond the node, as the label nvidia.com/gpu.clique has it: cluster UUID, dot,
    clique."""
    simulated: bool = False
    dra: bool = False
    """Whether it serves ResourceClaims: its driver is registered with the node's kubelet."""
    problem: str = ""
    """Why no GPU is known, where none is: no driver, or it has none."""
    remote: RemoteAbility = RemoteAbility()
    """What it offers for GPUs over the network."""
    host_memory: HostMemory = HostMemory()
    """What it offers for suspended pods."""
    any_gpu: bool = False
    """Whether it restores the memory of a checkpointed pod to another GPU of the same model (`Grant.any_gpu`)."""
    idle_grants: dict[str, float] = {}
    """By ID of grants whose pods are idle: since when, in seconds since 1970. None of their programs has launched
    anything for a set time, and none waits to. A suspended pod stays in it until one of them wants the GPU."""
    woken_grants: dict[str, float] = {}
    """By ID of grants whose pods are suspended and were idle: since when a program wants the GPU."""
    checkpoint_id: str = ""
    """Another one under the same boot id: the agent found no checkpoint at its start, so it has forgotten which grants
    it knew and which it released, and its generations begin anew."""

    @property
    def era(self) -> Era:
        return Era(self.boot_id, self.checkpoint_id)

    def __post_init__(self) -> None:
        checked("the number of GPUs", len(self.gpus), MOST_GPUS)
        checked("generation", self.generation, MOST_GENERATION)
        seen: set[str] = set()
        for gpu in self.gpus:
            if gpu.uuid in seen:
                raise ValueError(f"the inventory names GPU {gpu.uuid} twice")
            seen.add(gpu.uuid)
