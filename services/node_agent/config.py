"""The node agent's settings."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from services.node_agent.cdi.host import Host
from shared.model.hollow_node import HollowNode
from shared.service.settings import Patience, Seconds


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of either one real node (`node`) or of simulated ones (`hollow`, `hollow_file`)."""

    node: str = ""
    """This host's name in Kubernetes. Empty if nodes are simulated."""
    checkpoint_file: str = "/var/lib/kerf/agent.json"
    boot_id_file: str = "/proc/sys/kernel/random/boot_id"
    poll_s: Seconds = 10.0
    """How often the agent reads the inventory from NVML."""
    health_s: Seconds = 1.0
    """How often the agent reads the health of the GPUs. XIDs are received at once."""
    nvml_timeout_s: Seconds = 3.0
    """A call into NVML that takes longer counts as hung: the node's GPUs are suspect until it returns."""
    release_without_nvml_s: Seconds = 60.0
    """If NVML has not answered for so long, a container whose pod has no cgroup and that the kubelet does not list
    counts as ended without it, and its part of the GPUs is released. They take no new slices before NVML answers."""
    recover_s: Patience = 30.0
    """How long a GPU must be free of faults before it takes slices again."""
    throttled_s: Patience = 60.0
    """How long a GPU may be slowed down by heat, the power brake or a slow PCIe link before it counts as suspect."""
    harmless_xids: tuple[int, ...] = ()
    """XIDs to ignore on this node, in addition to those that applications cause."""
    evict_unhealthy: bool = False
    """Evict the pods on a GPU that has become unhealthy, through the Eviction API. Otherwise they keep running."""
    usage_s: Seconds = 5.0
    """How often the use of the GPUs is sampled."""
    sysfs: str = "/sys"
    """Where sysfs is mounted: PCI devices and network cards."""
    beat_s: Annotated[float, msgspec.Meta(gt=0, le=5)] = 2.0
    """Placement takes a node without a heartbeat for 10 s as silent."""
    kubelet_dir: str = "/var/lib/kubelet"
    """Where the kubelet's sockets and its device checkpoint are. Without this directory nothing is handed over."""
    cdi_dir: str = "/var/run/cdi"
    """Where the container runtime reads CDI specs and the agent writes them."""
    runtime_sockets: tuple[str, ...] = (
        "/run/containerd/containerd.sock",
        "/run/k3s/containerd/containerd.sock",
        "/run/crio/crio.sock",
    )
    """The container runtime's possible sockets on the host; the first one that answers says whether it supports CDI.
    Until then the node offers nothing if any of them exists."""
    host_root: str = "/"
    """Where the host's / is mounted for the agent: for the driver's files, its device nodes and NVIDIA's toolkit."""
    driver_root: str = "/"
    """Where the driver's files are on the host: /run/nvidia/driver if the GPU operator installed the driver."""
    cpu_affinity: Literal["near", "off"] = "near"
    """Pin containers to the CPUs near their GPUs, through NRI, if they still get the CPU time that they were
    promised."""
    memory_affinity: Literal["near", "off"] = "off"
    """Bind their memory to the NUMA nodes near their GPUs, too. Then it cannot move to other nodes when these are
    full."""
    nri_socket: str = "/run/nri/nri.sock"
    """Where the container runtime serves NRI on the host."""
    gpushare_unit: Literal["GiB", "MiB"] = "GiB"
    """The unit of memory in gpushare's resources, as in admission's setting of the same name."""
    cgroup_dir: str = "/sys/fs/cgroup"
    """Where the host's cgroup file systems are mounted."""
    enforce: Literal["proven", "off"] = "proven"
    """`proven`: offer firm isolation if the canary has proven it on this driver. `off`: never offer it, and inject
    nothing into containers."""
    interposer_dir: str = "/opt/kerf/lib/interposer"
    """Where the interposer and its probe are in the agent's image."""
    library_dir: str = "/var/lib/kerf/lib"
    """Where containers get the interposer from, on the host. The file system must not be mounted noexec."""
    run_dir: str = "/run/kerf"
    """Where the control blocks of running slices are, on the host. A reboot empties it."""
    mount_slices: bool = False
    """Give the control blocks a tmpfs of their own, with room for them and nothing else, so that no container can fill
    the file system of run_dir. It needs CAP_SYS_ADMIN, and in a pod run_dir with bidirectional mount propagation."""
    libcuda: str = ""
    """The driver's libcuda as the agent sees it. Empty: where the host has it."""
    context_mib: Annotated[int, msgspec.Meta(ge=0, le=65536)] | None = None
    """Memory that the CUDA context of one process takes on a GPU, charged to its slice. None: what the canary has
    measured on this node."""
    period_ms: Annotated[int, msgspec.Meta(ge=5, le=1000)] = 50
    """The period of compute sharing: in each one, every slice with a compute share gets its part."""
    in_flight_us: Annotated[int, msgspec.Meta(ge=100, le=100_000)] = 500
    """GPU time that a slice may have submitted and not finished while slices of higher precedence share its GPU."""
    reserved_in_flight_us: Annotated[int, msgspec.Meta(ge=100, le=100_000)] = 2000
    """The same for a slice whose GPU time is reserved, while it shares its GPU."""
    least_milli: Annotated[int, msgspec.Meta(ge=0, le=500)] = 0
    """Share of each GPU's time for every slice that yields to others, even if the others are always busy or say so.
    Together these slices get at most half of the GPU's time, and none that is reserved. 0: the slices that do not yield
    lose less than 5 % to them, and they get what is left over."""
    escapes: Literal["report", "lock", "evict", "kill"] = "report"
    """What to do with a pod that exceeds its slice's memory or GPU time: report it, time-slice it under the driver's
    lock, evict it, or end its processes at once (SIGKILL) and evict it."""
    escape_slack_mib: Annotated[int, msgspec.Meta(ge=0, le=65536)] = 1024
    """How much more memory than its control blocks count each process of a pod may hold on a GPU before the agent acts
    on it: code of libraries and local memory, which no control block counts. It reports a pod beyond what it has
    learned on this node, which is never more than this."""
    escape_slack_milli: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 100
    """How much more GPU time than its share NVML may report for a pod, over the window, before that counts as an
    escape."""
    escape_window_s: Seconds = 10.0
    """The window over which GPU time is compared with the share: NVML's samples are coarse, and a long kernel is paid
    for afterwards."""
    police_s: Seconds = 1.0
    """How often, at least, the memory of pods with policed slices is compared with their grants. Beyond them a pod is
    reported by the first sample, frozen by the second, and ended by the third."""
    police_slack_mib: Annotated[int, msgspec.Meta(ge=0, le=65536)] = 256
    """How much more memory on a GPU than granted NVML may report for a pod with policed slices."""
    mig: Literal["fixed", "on_demand"] = "fixed"
    """GPUs in MIG mode: `fixed` offers the instances that an administrator has created. `on_demand`: the agent creates
    and destroys instances as grants name them, beside those of others, which it neither offers nor touches."""
    mig_timeout_s: Seconds = 20.0
    """A call that creates or destroys a MIG instance and takes longer counts as hung."""
    mps_nodes: tuple[str, ...] = ()
    """Patterns of the names of nodes whose GPUs are shared by NVIDIA's MPS, such as "gpu-a-*": parts of GPUs are given
    there by the strategy mps alone, once the agent has tried it on a GPU."""
    mps_control: str = ""
    """The host's path of nvidia-cuda-mps-control. Empty: where the driver has it."""
    burst_return_s: Seconds = 2.0
    """How long pods have to free memory beyond their guarantee when another pod's guarantee needs it."""
    burst_return: Literal["checkpoint", "evict"] = "checkpoint"
    """What happens to a pod that has not freed it by then: `checkpoint` moves its memory to the host until it fits
    again, and ends the pod where that cannot be done; `evict` ends it (SIGKILL, and eviction)."""
    host_memory_mib: Annotated[int, msgspec.Meta(ge=0, le=1 << 30)] | None = None
    """Memory of this host for the GPU memory of suspended pods, of all of them together. 0: none is moved to the host.
    None: half of the host's memory. Each pod needs room in its own memory limit, too."""
    turns_on_any_gpu: bool = False
    """Whether pods that take turns may come back from the host to another GPU of the same model. Their containers then
    get the device nodes of all GPUs of the node, and the interposer hides those that are not theirs: it is a library,
    and no barrier to hostile programs."""
    rehearse_after_s: Seconds = 10.0
    """When the programs of a pod that takes turns have had GPU memory for so long, they are checkpointed and restored
    once, to see whether they can be."""
    copies_at_once: Annotated[int, msgspec.Meta(ge=1, le=64)] = 8
    """How many processes may be copied to the host or back at once, each by a worker of its own (some 15 MiB)."""
    idle_after_s: Annotated[float, msgspec.Meta(ge=0, le=86_400)] = 30.0
    """A pod that takes turns and has used no GPU for so long counts as idle: its turn ends as soon as another waits. 0:
    none ever does."""
    burst_reserve_mib: Annotated[int, msgspec.Meta(ge=0, le=65536)] = 1024
    """Memory of each GPU that is never lent to slices beyond their guarantees: for what the driver and libraries take,
    and no counter has."""
    remote_serving_nodes: tuple[str, ...] = ()
    """Patterns of the names of nodes that serve their GPUs to containers of other nodes, such as "gpu-*"."""
    remote_client_nodes: tuple[str, ...] = ()
    """Patterns of the names of nodes whose containers may use GPUs of other nodes."""
    remote_address: str = ""
    """Where other nodes reach this one if it serves, as "host:port"."""
    remote_files: str = ""
    """A folder with `tls.crt` and `tls.key`, the certificate of this node (DNS name NODE.nodes.kerf.dev); `ca.crt`, who
    signs those of all nodes; and `grants.key`, of 32 bytes or more and the same on all nodes, from which the secret of
    each grant is derived. Empty: the agent gets them from the operator."""
    remote_dir: str = "/opt/kerf/lib/remote"
    """Where the programs for it are in the agent's image."""
    remote_server_mib: Annotated[int, msgspec.Meta(ge=256, le=1 << 20)] = 4096
    """Host memory of one server with its programs: contexts, code, and copies on their way."""
    remote_server_environment: dict[str, str] = {}
    """Variables of the servers, which get none of the agent's."""
    remote_probe_s: Seconds = 60.0
    """How long the agent rests between two measurements of the network."""
    job_mapping_dir: str = ""
    """Where the agent writes, for each GPU, which containers have a part of it, as dcgm-exporter reads it with
    --hpc-job-mapping-dir. Empty: nowhere."""
    dra: bool = False
    """Serve ResourceClaims of the class gpu.kerf.dev, too (Kubernetes 1.34 and later)."""
    pods_per_nic: Annotated[int, msgspec.Meta(ge=1, le=1024)] = 1
    """How many pods with the annotation kerf.dev/nic may have the same network card."""
    slots: Annotated[int, msgspec.Meta(ge=1, le=16384)] = 1024
    """How many containers with GPUs the kubelet admits on this node at the same time."""
    hollow: tuple[HollowNode, ...] = ()
    hollow_file: str = ""
    """A JSON file with a list of simulated nodes."""

    @property
    def mps(self) -> bool:
        """Whether this node's GPUs are shared by MPS."""
        return any(fnmatchcase(self.node, pattern) for pattern in self.mps_nodes)

    @property
    def serves_gpus(self) -> bool:
        """Whether this node serves its GPUs to other nodes."""
        return any(fnmatchcase(self.node, pattern) for pattern in self.remote_serving_nodes)

    @property
    def uses_remote_gpus(self) -> bool:
        """Whether this node's containers may use GPUs of other nodes."""
        return any(fnmatchcase(self.node, pattern) for pattern in self.remote_client_nodes)

    def has_kubelet(self) -> bool:
        return Path(self.kubelet_dir).is_dir()

    def host(self) -> Host:
        return Host(root=Path(self.host_root), driver_root=self.driver_root)

    def hollow_nodes(self) -> tuple[HollowNode, ...]:
        """The simulated nodes. Raises OSError or msgspec.DecodeError if hollow_file cannot be read, ValueError if two
        nodes have the same name."""
        more = (
            ()
            if not self.hollow_file
            else msgspec.json.decode(Path(self.hollow_file).read_bytes(), type=tuple[HollowNode, ...])
        )
        nodes = (*self.hollow, *more)
        if len({node.name for node in nodes}) != len(nodes):
            raise ValueError("two simulated nodes have the same name")
        return nodes
