"""The node agent's settings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec

from services.node_agent.cdi.host import Host
from services.node_agent.hollow import HollowNode
from shared.service.settings import Patience, Seconds


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Either one real node (`node`), or any number of simulated ones (`hollow`, `hollow_file`)."""

    node: str = ""
    """This host's name in Kubernetes. Empty where nodes are simulated."""
    checkpoint_file: str = "/var/lib/kerf/agent.json"
    boot_id_file: str = "/proc/sys/kernel/random/boot_id"
    poll_s: Seconds = 10.0
    """How often NVML is asked what there is."""
    health_s: Seconds = 1.0
    """How often the GPUs are asked how they are. XIDs are heard at once."""
    nvml_timeout_s: Seconds = 3.0
    """A call into NVML that takes longer counts as hung: the node's GPUs are suspect until it returns."""
    recover_s: Patience = 30.0
    """How long a GPU has to be without trouble before it takes slices again."""
    throttled_s: Patience = 60.0
    """How long a GPU may be held back by heat, the power brake or a slow PCIe link before it counts as suspect."""
    harmless_xids: tuple[int, ...] = ()
    """XIDs that are to change nothing here, besides those that are the application's."""
    evict_unhealthy: bool = False
    """Evict the pods on a GPU that has become unhealthy, through the Eviction API. Otherwise they are left alone."""
    usage_s: Seconds = 5.0
    """How often it is sampled who uses the GPUs."""
    sysfs: str = "/sys"
    """Where the kernel shows its PCI devices and network cards."""
    beat_s: Seconds = 2.0
    kubelet_dir: str = "/var/lib/kubelet"
    """Where the kubelet's sockets and its device checkpoint are. Without that directory nothing is handed over."""
    cdi_dir: str = "/var/run/cdi"
    """Where the container runtime looks for CDI specs, and the agent writes them."""
    runtime_sockets: tuple[str, ...] = (
        "/run/containerd/containerd.sock",
        "/run/k3s/containerd/containerd.sock",
        "/run/crio/crio.sock",
    )
    """Where the container runtime may listen, on the host; the first that exists is asked whether it has CDI."""
    host_root: str = "/"
    """Where the agent sees the host's /: for the driver's files, its device nodes and NVIDIA's toolkit."""
    driver_root: str = "/"
    """Where on the host the driver's files are: /run/nvidia/driver where the GPU operator brought the driver."""
    cpu_affinity: Literal["near", "off"] = "near"
    """Give containers the CPUs beside their GPUs, through NRI, where that takes nothing from them that they were promised."""
    memory_affinity: Literal["near", "off"] = "off"
    """Bind their memory to the nodes beside their GPUs, too, which then cannot give way to others when it is full."""
    nri_socket: str = "/run/nri/nri.sock"
    """Where the container runtime serves NRI, on the host."""
    gpushare_unit: Literal["GiB", "MiB"] = "GiB"
    """What gpushare's pods count memory in, as in admission's setting of that name."""
    cgroup_dir: str = "/sys/fs/cgroup"
    """Where the host's cgroups are."""
    enforce: Literal["proven", "off"] = "proven"
    """Offer firm isolation where the canary has proven it on this driver; off: never, and nothing is put into containers."""
    interposer_dir: str = "/opt/kerf/lib/interposer"
    """Where the interposer and its probe are in the agent's image."""
    library_dir: str = "/var/lib/kerf/lib"
    """On the host, where containers get the interposer from; of a file system that is not mounted noexec."""
    run_dir: str = "/run/kerf"
    """On the host, for the pages of running slices; a reboot empties it."""
    libcuda: str = ""
    """The driver's libcuda as the agent sees it. Empty: where the host has it."""
    context_mib: Annotated[int, msgspec.Meta(ge=0, le=65536)] | None = None
    """What one process's CUDA context takes of a GPU, charged to its slice. None: what the canary has measured here."""
    period_ms: Annotated[int, msgspec.Meta(ge=5, le=1000)] = 50
    """In each period every slice with compute of its own has its part to itself."""
    in_flight_us: Annotated[int, msgspec.Meta(ge=100, le=100_000)] = 500
    """GPU time that a slice may have submitted and not finished, where others wait for it."""
    least_milli: Annotated[int, msgspec.Meta(ge=0, le=500)] = 0
    """Of each GPU's time, to every slice that gives way to others, even where those are always busy, or always say so. Together at
    most half of it, and nothing that is reserved. 0: those before it lose under 5 % to it, and it has what they leave."""
    escapes: Literal["report", "lock", "evict"] = "report"
    """What becomes of a pod whose memory or GPU time gets past its slice: it is shown, runs by turns under the driver's lock, or is evicted."""
    escape_slack_mib: Annotated[int, msgspec.Meta(ge=0, le=65536)] = 1024
    """So much more than its pages count may a pod hold of a GPU before that counts as an escape: contexts that no page counts."""
    escape_slack_milli: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 100
    """So much more GPU time than its share may NVML see of a pod, over the window, before that counts as an escape."""
    escape_window_s: Seconds = 10.0
    """Over so long GPU time is compared with the share: NVML's samples are rough, and a long kernel is paid for afterwards."""
    dra: bool = False
    """Serve ResourceClaims of the class gpu.kerf.dev too (Kubernetes 1.34 and later)."""
    slots: Annotated[int, msgspec.Meta(ge=1, le=16384)] = 1024
    """How many containers with GPUs the kubelet admits on this node at once."""
    hollow: tuple[HollowNode, ...] = ()
    hollow_file: str = ""
    """A JSON file with a list of the same."""

    def has_kubelet(self) -> bool:
        return Path(self.kubelet_dir).is_dir()

    def host(self) -> Host:
        return Host(root=Path(self.host_root), driver_root=self.driver_root)

    def hollow_nodes(self) -> tuple[HollowNode, ...]:
        """Raises OSError or msgspec.DecodeError where hollow_file cannot be read, ValueError on a name given twice."""
        more = (
            ()
            if not self.hollow_file
            else msgspec.json.decode(Path(self.hollow_file).read_bytes(), type=tuple[HollowNode, ...])
        )
        nodes = (*self.hollow, *more)
        if len({node.name for node in nodes}) != len(nodes):
            raise ValueError("two simulated nodes have the same name")
        return nodes
