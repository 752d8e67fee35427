"""The preemptor's settings."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import msgspec

from shared.service.settings import Count, Seconds


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    FORMER_NAMES: ClassVar[dict[str, str]] = {"max_plans": "plans_most", "protection_s": "immunity_s"}

    patience_s: Seconds = 0.2
    """How long a pod that does not fit waits before other pods are preempted for it: something may end by itself."""
    leaving_s: Seconds = 60.0
    """How long to wait for a slice whose pod is gone and which its node has not returned; and how long a pod waits
    for pods that are already terminating if others would have to be preempted as well. If the capacity that is being
    returned is enough, the pod waits for the whole grace periods."""
    reclaim_patience: Annotated[float, msgspec.Meta(ge=0)] = 1.0
    """Capacity that was borrowed beyond guarantees is reclaimed when the reclaiming pod has waited, in GPU-seconds, for
    this multiple of the work that preemption would have destroyed when its wait began; 0: at once."""
    deadline_s: Count = 120
    """How long a plan may take from its reservation on, in addition to the longest grace period of its victims; a plan
    whose capacity is not free by then is cancelled."""
    max_plans: Count = 64
    """The maximum of plans in progress at once."""
    shrinks: bool = False
    """Whether pods on enforced slices may be shrunk by GPU memory that they have not allocated. A pod that then
    allocates more than it was left fails as on a full GPU."""
    autoscale: bool = False
    """Whether slices of pods with the annotation kerf.dev/autoscale are resized by what they use."""
    checkpoints: bool = False
    """Whether pods may be checkpointed to host memory instead of evicted. On a real driver it was tried with two
    programs (docs/decisions/0254)."""
    turns: bool = True
    """Whether jobs that allow it take turns (docs/decisions/0243)."""
    copied_mib_per_s: Annotated[float, msgspec.Meta(gt=0)] = 5 * 1024
    """How fast GPU memory is copied to the host and back, for each GPU, where the node does not say it yet
    (`HostMemory`)."""
    copy_fixed_s: Annotated[float, msgspec.Meta(ge=0)] = 1.5
    """What a suspension to the host, and a resumption from there, takes besides the copy."""
    max_copy_part: Annotated[float, msgspec.Meta(gt=0)] = 0.5
    """No turn is planned whose copies take more than this part of it."""
    protection_s: Seconds = 300.0
    """How long a pod that replaces a preempted one is protected; a replacement of a replacement for twice as long,
    and so on."""
    driver_upgrades: Literal["evict", "ignore"] = "evict"
    """`evict`: pods with GPUs are evicted from a node whose driver the GPU operator is about to replace."""
    incomplete_gang_s: Annotated[int, msgspec.Meta(ge=0)] = 0
    """How long a gang may run with fewer pods than its minimum before the others are evicted, for gangs without the
    annotation kerf.dev/gang-incomplete; 0: they run on."""
    defragmentation_gpu_seconds_per_hour: Annotated[int, msgspec.Meta(ge=0)] = 0
    """How much running work migrations to reserved capacity may disturb in any hour; 0: no pod is migrated."""
    evictions_per_hour: Annotated[int, msgspec.Meta(ge=0)] = 0
    """The maximum for the pods of one namespace; 0 for no limit."""
