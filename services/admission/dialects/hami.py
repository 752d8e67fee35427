"""HAMi: `nvidia.com/gpu` GPUs, of each `nvidia.com/gpumem` (MiB) or `gpumem-percentage`, and `gpucores` (percent).

As in HAMi 2.10 (pkg/device/nvidia/device.go, pkg/scheduler/webhook.go): without memory a container gets all of it;
with all memory and no cores named, or with all cores, it is alone on its GPUs, whatever an installation's defaults for
memory and cores are (its webhook decides that, and its scheduler fills in the defaults). A pod with nvidia.com/gpu and
none of HAMi's resources is plain NVIDIA, unless it names HAMi's scheduler.
"""

from __future__ import annotations

from services.admission.dialects import vgpu
from services.admission.dialects.base import (
    Json,
    Manifest,
    Setting,
    Translation,
    amount,
    containers,
    own_priority_class,
    refuse_annotations,
    where_of,
    written_resources,
)
from services.admission.dialects.selection import selection
from shared.model import names
from shared.model.request import RequestError

NAMES = vgpu.Names(
    "nvidia.com/gpu",
    "nvidia.com/gpumem",
    "nvidia.com/gpumem-percentage",
    "nvidia.com/gpucores",
    alone_with_all_memory=True,
)
PRIORITY = "nvidia.com/priority"
SCHEDULER = "hami-scheduler"
_OWN = (NAMES.all | {PRIORITY}) - {NAMES.count}
"""What no other system has; it counts where its amount is zero, too."""
_MODE = "nvidia.com/vgpu-mode"
_NODE_POLICY = "hami.io/node-scheduler-policy"
_GPU_POLICY = "hami.io/gpu-scheduler-policy"
_NUMA = "nvidia.com/numa-bind"
_TRUE = frozenset(("1", "t", "T", "true", "TRUE", "True"))
"""As strconv.ParseBool reads them; HAMi takes everything else for false."""
_ORDERS = ("binpack", "spread")
_REFUSED = {
    "nvidia.com/use-gpuindexes": f"an index names another GPU on each node; write {names.ANNOTATION_GPU_UUID}",
    "nvidia.com/nouse-gpuindexes": f"an index names another GPU on each node; write {names.ANNOTATION_GPU_UUID_NOT}",
    "hami.io/device-scoring-weights": f"choose a policy by {names.ANNOTATION_POLICY} or {names.ANNOTATION_GPU_POLICY}",
}


class Hami:
    name = "hami"
    resources = NAMES.all | {PRIORITY}
    schedulers: tuple[str, ...] = (SCHEDULER,)

    def speaks(self, manifest: Manifest, setting: Setting) -> bool:
        if manifest.named.isdisjoint(NAMES.all):
            # A priority alone asks for no GPU. Of a pod that is taken over all the same it is taken out.
            return setting.taken_over and PRIORITY in manifest.named
        return manifest.scheduler == SCHEDULER or not manifest.written.isdisjoint(_OWN)

    def translate(self, pod: Json, setting: Setting) -> Translation:
        refuse_annotations(pod, _REFUSED)
        asks = {
            place: ask
            for place, container in containers(pod)
            if (ask := vgpu.read(container, NAMES, setting.hami)) is not None
        }
        annotations = selection(pod) | vgpu.isolation(pod, _MODE)
        order, alone = _policies(pod)
        whole = {place: {names.RESOURCE_GPU: str(ask.count)} for place, ask in asks.items()}
        return Translation(
            amounts=whole if alone else {place: vgpu.canonical(ask) for place, ask in asks.items()},
            removed=self.resources,
            annotations=annotations | order | {names.ANNOTATION_DIALECT: self.name},
            priority_class=_priority(pod, setting),
        )


def _policies(pod: Json) -> tuple[dict[str, str], bool]:
    """Kerf's annotations for HAMi's policies, and whether the pod wants GPUs that no other pod uses (mutex).

    HAMi reads a list of GPU policies in its order: filters first, then keys by which GPUs are sorted. That GPUs of few
    NUMA nodes are better (numa) is so in Kerf anyway.
    """
    annotations = (pod.get("metadata") or {}).get("annotations") or {}
    found: dict[str, str] = {}
    if node := annotations.get(_NODE_POLICY):
        if node not in _ORDERS:
            raise RequestError(
                "foreign-field",
                f"annotation {_NODE_POLICY} is {node!r}; it must be one of {', '.join(_ORDERS)}, or write "
                f"{names.ANNOTATION_POLICY}",
            )
        found[names.ANNOTATION_POLICY] = node
    chain = [part.strip() for part in str(annotations.get(_GPU_POLICY) or "").split(",") if part.strip()]
    orders = [part for part in chain if part in _ORDERS]
    unknown = sorted(set(chain) - {*_ORDERS, "numa", "mutex", "topology-aware"})
    if unknown or len(set(orders)) > 1:
        raise RequestError(
            "foreign-field",
            f"annotation {_GPU_POLICY} is {annotations[_GPU_POLICY]!r}; Kerf reads one of {', '.join(_ORDERS)}, and "
            f"numa, mutex and topology-aware. In Kerf's words {names.ANNOTATION_GPU_POLICY} and "
            f"{names.ANNOTATION_TOPOLOGY}",
        )
    if orders:
        found[names.ANNOTATION_GPU_POLICY] = orders[0]
    if "topology-aware" in chain:
        found |= {names.ANNOTATION_TOPOLOGY: "preferred", names.ANNOTATION_TOPOLOGY_MODE: "ring"}
    if str(annotations.get(_NUMA)) in _TRUE:
        found[names.ANNOTATION_TOPOLOGY] = "numa"
    return found, "mutex" in chain


def _priority(pod: Json, setting: Setting) -> str:
    """The PriorityClass that a pod of high priority gets. HAMi-core takes a task without the variable for one of
    priority 1 (src/multiprocess/multiprocess_memory_limit.c), so all from 1 on are ordinary."""
    for _, container in containers(pod):
        if PRIORITY in written_resources(container) and amount(container, PRIORITY) == 0:
            if own_priority_class(pod, setting):
                return ""
            if not setting.hami.high_priority_class:
                raise RequestError(
                    "foreign-field",
                    f"{where_of(container)}: {PRIORITY} is 0, the high priority, and this installation names no "
                    "PriorityClass for it; write priorityClassName in the pod (a slice of higher priority takes its "
                    f"turn first), or leave {PRIORITY} out",
                )
            return setting.hami.high_priority_class
    return ""
