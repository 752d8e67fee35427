"""Every Kubernetes name that Kerf reads or writes, once."""

from __future__ import annotations

PREFIX = "kerf.dev/"
SCHEDULER_NAME = "kerf"

# Extended resources. By the slot the kubelet admits. The others stand in the pod for ResourceQuota and LimitRange, and
# in the status of nodes for autoscalers and Kueue (`shared.book.advertised`); the book counts each GPU instead.
RESOURCE_SLOT = "kerf.dev/slot"
RESOURCE_QUOTA = "kerf.dev/quota-gpu-milli"
"""What a container counts under ResourceQuota and for autoscalers, in thousandths of a GPU. Kerf never reads it."""
RESOURCE_GPU = "kerf.dev/gpu"
RESOURCE_GPU_MEMORY = "kerf.dev/gpu-memory"
RESOURCE_GPU_COMPUTE = "kerf.dev/gpu-compute"
RESOURCE_GPU_MEMORY_PERCENT = "kerf.dev/gpu-memory-percent"
GPU_RESOURCES = (RESOURCE_GPU, RESOURCE_GPU_MEMORY, RESOURCE_GPU_COMPUTE, RESOURCE_GPU_MEMORY_PERCENT)
PREFIX_MIG = "kerf.dev/mig-"
"""Prefix of a MIG profile, as in kerf.dev/mig-1g.10gb: a number of instances."""

# Annotations a user may write.
ANNOTATION_ISOLATION = "kerf.dev/isolation"
ANNOTATION_GPU_MODEL = "kerf.dev/gpu-model"
ANNOTATION_GPU_MODEL_NOT = "kerf.dev/gpu-model-not"
ANNOTATION_GPU_UUID = "kerf.dev/gpu-uuid"
ANNOTATION_GPU_UUID_NOT = "kerf.dev/gpu-uuid-not"
ANNOTATION_GPU_GENERATION = "kerf.dev/gpu-generation"
ANNOTATION_GPU_MEMORY_MIN = "kerf.dev/gpu-memory-min"
ANNOTATION_GPU_MEMORY_LIMIT = "kerf.dev/gpu-memory-limit"
ANNOTATION_GPU_COMPUTE_LIMIT = "kerf.dev/gpu-compute-limit"
ANNOTATION_GPU_CAPABILITY_MIN = "kerf.dev/gpu-capability-min"
ANNOTATION_GPU_PREFER = "kerf.dev/gpu-prefer"
ANNOTATION_GPU_USE = "kerf.dev/gpu-use"
ANNOTATION_MAX_SLOWDOWN = "kerf.dev/max-slowdown"
ANNOTATION_REMOTE = "kerf.dev/remote"
ANNOTATION_GPU_CALLS = "kerf.dev/gpu-calls"
ANNOTATION_GPU_TRANSFER = "kerf.dev/gpu-transfer"
ANNOTATION_TOPOLOGY = "kerf.dev/topology"
ANNOTATION_TOPOLOGY_MODE = "kerf.dev/topology-mode"
ANNOTATION_POLICY = "kerf.dev/policy"
ANNOTATION_GPU_POLICY = "kerf.dev/gpu-policy"
ANNOTATION_GANG = "kerf.dev/gang"
ANNOTATION_GANG_SIZE = "kerf.dev/gang-size"
ANNOTATION_GANG_MIN = "kerf.dev/gang-min"
ANNOTATION_GANG_SUBGROUP = "kerf.dev/gang-subgroup"
ANNOTATION_GANG_SUBGROUPS = "kerf.dev/gang-subgroups"
ANNOTATION_GANG_TOPOLOGY = "kerf.dev/gang-topology"
ANNOTATION_GANG_TIMEOUT = "kerf.dev/gang-timeout"
ANNOTATION_GANG_INCOMPLETE = "kerf.dev/gang-incomplete"
ANNOTATION_EXPECTED_DURATION = "kerf.dev/expected-duration"
ANNOTATION_MIN_RUNTIME = "kerf.dev/min-runtime"
ANNOTATION_RESTART_COST = "kerf.dev/restart-cost"
ANNOTATION_NIC = "kerf.dev/nic"
ANNOTATION_TIER = "kerf.dev/tier"
ANNOTATION_PREEMPTIBLE = "kerf.dev/preemptible"
ANNOTATION_TURNS = "kerf.dev/turns"
"""`allowed`: the pod may be suspended for another pod's turn; `never`: it is not, whatever its queue says."""
ANNOTATION_WATCHDOG = "kerf.dev/watchdog"
"""How long the program bears to be suspended; `none`: for ever."""
ANNOTATION_SUSPEND_HOOK = "kerf.dev/suspend-hook"
"""How a program that can give its GPU memory back by itself is told to."""
ANNOTATION_AUTOSCALE = "kerf.dev/autoscale"
ANNOTATION_RESIZE = "kerf.dev/resize"
"""Of a running pod: what its slices shall have (`shared.model.resize`)."""

# Annotations that Kerf writes. Only the watcher's account may write the grant (an admission policy sees to it).
ANNOTATION_GRANT = "kerf.dev/grant"
ANNOTATION_TOUCHED = "kerf.dev/touched"
ANNOTATION_SUSPENDED = "kerf.dev/suspended"
ANNOTATION_GPU_TIME = "kerf.dev/gpu-time"
"""Of a pod that takes turns (`shared.turns.gpu_time`)."""
ANNOTATION_PARKED = "kerf.dev/parked"
"""What ANNOTATION_SUSPENDED was called before 0.2: still read, and removed by the next write of the new one."""
ANNOTATION_DIALECT = "kerf.dev/dialect"
ANNOTATION_PROFILE = "kerf.dev/profile"
"""On a pod: what the profile of its namespace (the label of this name) has filled in."""
ANNOTATION_ADMISSION_TRACEPARENT = "kerf.dev/admission-traceparent"

DRA_DRIVER = "gpu.kerf.dev"
DEVICE_CLASS = "gpu.kerf.dev"
"""A DeviceClass has no slash in its name; `kerf.dev/gpu` is the resource."""
ANNOTATION_INVENTORY = "kerf.dev/inventory"
"""On our ResourceSlices: what they were made from."""

LABEL_MANAGED = "kerf.dev/managed"
"""Written by users, `true` on each node that Kerf should manage."""
LABEL_GPUSHARE = "gpushare"
"""gpushare's label of the same meaning."""
LABEL_ENROLLED = "kerf.dev/enrolled"
"""Written by the operator: the node has the taint, and gets an agent."""
TAINT_MANAGED = "kerf.dev/managed"
TAINT_LEAVING = "kerf.dev/leaving"
"""On a node that leaves Kerf while pods with grants run there: no pod tolerates it."""
TAINT_NO_ROOM = "status-taint.cluster-autoscaler.kubernetes.io/kerf-no-room"
"""On a node where, added up, there is room for a waiting pod, and where it does not fit. Cluster Autoscaler takes no
taint of this prefix for one that new nodes have too. Kerf itself does not look at it."""
LABEL_QUEUE = "kerf.dev/queue"
LABEL_RACK = "topology.kubernetes.io/rack"
LABEL_ZONE = "topology.kubernetes.io/zone"

# Labels of nodes that operators may write: relative figures of one of their GPUs.
LABEL_GPU_COST = "kerf.dev/gpu-cost"
LABEL_GPU_SPEED = "kerf.dev/gpu-speed"

# GPU feature discovery's names, written on nodes by the watcher.
LABEL_GPU_PRODUCT = "nvidia.com/gpu.product"
LABEL_GPU_COUNT = "nvidia.com/gpu.count"
LABEL_GPU_MEMORY = "nvidia.com/gpu.memory"
LABEL_GPU_FAMILY = "nvidia.com/gpu.family"
LABEL_GPU_COMPUTE = "nvidia.com/gpu.compute"
"""Before .major and .minor."""
LABEL_GPU_CLIQUE = "nvidia.com/gpu.clique"
LABEL_MIG_CAPABLE = "nvidia.com/mig.capable"
LABEL_DRIVER = "nvidia.com/cuda.driver"
"""Before .major, .minor and .rev."""
LABEL_CUDA = "nvidia.com/cuda.runtime"
"""Before .major and .minor: the newest CUDA that the driver serves."""
LABEL_GFD_TIMESTAMP = "nvidia.com/gfd.timestamp"
"""Written by GPU feature discovery itself, never by us."""


def mig_resource(profile: str) -> str:
    """The resource that asks for instances of a MIG profile. A resource's name has no plus: 1g.5gb+me is written
    kerf.dev/mig-1g.5gb.me."""
    return PREFIX_MIG + profile.replace("+", ".")


def is_gpu_resource(resource: str) -> bool:
    """Whether a resource is one by which a container asks Kerf for GPUs."""
    return resource in GPU_RESOURCES or resource.startswith(PREFIX_MIG)


def certificate_name(node: str) -> str:
    """The DNS name in the certificate with which a node shows who it is to others. No server has a name like it."""
    return f"{node}.nodes.kerf.dev"
