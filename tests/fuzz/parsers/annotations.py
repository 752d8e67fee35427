"""An example of every annotation that Kerf reads, alone or several together."""

from __future__ import annotations

from shared.contracts.examples import EXAMPLES
from shared.model import names
from shared.model.grant import encode_grant

GRANT = encode_grant(EXAMPLES["NodeGrant"].grant)
ANNOTATIONS: tuple[tuple[str, str], ...] = (
    (names.ANNOTATION_ISOLATION, "firm"),
    (names.ANNOTATION_GPU_MODEL, "H200|H100"),
    (names.ANNOTATION_GPU_MODEL_NOT, "T4|P4"),
    (names.ANNOTATION_GPU_UUID, "GPU-1f0e4c53|GPU-5a1c9a60"),
    (names.ANNOTATION_GPU_UUID_NOT, "GPU-1f0e4c53"),
    (names.ANNOTATION_GPU_GENERATION, "Ampere|Hopper"),
    (names.ANNOTATION_GPU_MEMORY_MIN, "40Gi"),
    (names.ANNOTATION_GPU_MEMORY_LIMIT, "24Gi"),
    (names.ANNOTATION_GPU_COMPUTE_LIMIT, "60"),
    (names.ANNOTATION_GPU_CAPABILITY_MIN, "8.0"),
    (names.ANNOTATION_GPU_PREFER, "speed"),
    (names.ANNOTATION_GPU_USE, "busy=60%,sm=40%,bandwidth=30%,request=6ms"),
    (names.ANNOTATION_MAX_SLOWDOWN, "1.2"),
    (names.ANNOTATION_REMOTE, "allowed"),
    (names.ANNOTATION_GPU_CALLS, "400"),
    (names.ANNOTATION_GPU_TRANSFER, "120"),
    (names.ANNOTATION_TOPOLOGY, "required"),
    (names.ANNOTATION_TOPOLOGY_MODE, "ring"),
    (names.ANNOTATION_POLICY, "binpack"),
    (names.ANNOTATION_GPU_POLICY, "spread"),
    (names.ANNOTATION_GANG, "g"),
    (names.ANNOTATION_GANG_SIZE, "4"),
    (names.ANNOTATION_GANG_MIN, "2"),
    (names.ANNOTATION_GANG_SUBGROUP, "workers"),
    (names.ANNOTATION_GANG_SUBGROUPS, "head=1,workers=4@rack"),
    (names.ANNOTATION_GANG_TOPOLOGY, "required=rack,preferred=host"),
    (names.ANNOTATION_GANG_TIMEOUT, "20s"),
    (names.ANNOTATION_GANG_INCOMPLETE, "evict-after=60"),
    (names.ANNOTATION_EXPECTED_DURATION, "1h30m"),
    (names.ANNOTATION_MIN_RUNTIME, "90m"),
    (names.ANNOTATION_RESTART_COST, "2d"),
    (names.ANNOTATION_NIC, "4"),
    (names.ANNOTATION_TIER, "opportunistic"),
    (names.ANNOTATION_PREEMPTIBLE, "false"),
    (names.ANNOTATION_TURNS, "allowed"),
    (names.ANNOTATION_WATCHDOG, "10m"),
    (names.ANNOTATION_SUSPEND_HOOK, "http://127.0.0.1:8080/suspend"),
    (names.ANNOTATION_AUTOSCALE, "memory=4Gi..20Gi,compute=10..60"),
    (names.ANNOTATION_RESIZE, "main:memory=12Gi,compute=40"),
    (names.ANNOTATION_SUSPENDED, '{"action":"throttle","plan_id":"p","compute_milli":100,"memory_mib":5}'),
    (names.ANNOTATION_GPU_TIME, '{"attained_gpu_ms":1000,"since":1.0,"turns":2}'),
    (names.ANNOTATION_GRANT, GRANT),
    ("kueue.x-k8s.io/pod-group-total-count", "4"),
    ("karpenter.sh/do-not-disrupt", "1h30m"),
    ("scheduling.k8s.io/group-name", "g"),
)
