"""What other systems say of a node: that they offer its GPUs too, and whether there are any.

Names, by their sources: gpu.nvidia.com is the DRA driver's of dra-driver-nvidia-gpu (NVIDIA/k8s-dra-driver-gpu,
cmd/gpu-kubelet-plugin); its compute-domain.nvidia.com offers channels between nodes and no GPUs. The labels
`nvidia.com/gpu.deploy.*` are those of NVIDIA/gpu-operator (controllers/state_manager.go), which honours a value that is
there. Node Feature Discovery writes pci-<class>_<vendor>.present, or the fields that its settings name, always in the
order class, vendor, device (kubernetes-sigs/node-feature-discovery, source/pci/pci.go); NVIDIA's vendor is 10de.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from shared.model import names
from shared.model.units import QuantityError, quantity

GPU_RESOURCES = (
    "nvidia.com/gpu",
    "nvidia.com/mig-",
    "volcano.sh/vgpu-",
    "volcano.sh/gpu-",
    "aliyun.com/gpu-",
    "koordinator.sh/gpu",
    "tencent.com/vcuda-",
)
"""What names of other systems' GPU resources begin with; HAMi's are nvidia.com/gpu, gpumem and gpucores."""
DRA_DRIVER = "gpu.nvidia.com"
NFD = "feature.node.kubernetes.io/"
_PCI, _PRESENT = f"{NFD}pci-", ".present"
_VENDOR, _DISPLAY_CLASS = "10de", "03"
_GPU_OPERATORS = "nvidia.com/gpu.present"
_NAMED = 3


class Neighbourhood(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of one node."""

    enrolled: bool = False
    """Kerf manages its GPUs."""
    asked: bool = False
    """Its label kerf.dev/managed says whether it is to be enrolled, yes or no."""
    resources: tuple[str, ...] = ()
    """GPU resources of other systems that the kubelet can allocate there now."""
    has_gpu: bool = False
    """A label says that it has an NVIDIA GPU."""
    discovered: bool = False
    """Node Feature Discovery has looked at it."""


class Trouble(msgspec.Struct, frozen=True):
    text: str
    do: str


def neighbourhood(labels: Mapping[str, str], allocatable: Mapping[str, str | int], *, enrolled: bool) -> Neighbourhood:
    return Neighbourhood(
        enrolled=enrolled,
        asked=names.LABEL_MANAGED in labels or names.LABEL_GPUSHARE in labels,
        resources=tuple(
            sorted(name for name, value in allocatable.items() if name.startswith(GPU_RESOURCES) and is_some(value))
        ),
        has_gpu=labels.get(_GPU_OPERATORS) == "true" or any(_is_gpu(label) for label in labels),
        discovered=any(label.startswith(NFD) for label in labels),
    )


def is_some(value: str | int) -> bool:
    """Whether the amount is one; what cannot be read counts, for the node may then be used."""
    try:
        return quantity(str(value)) != 0
    except QuantityError:
        return True


def _is_gpu(label: str) -> bool:
    """By vendor alone, or by vendor and a class of display controllers; an NVSwitch or a sound device is no GPU."""
    if not (label.startswith(_PCI) and label.endswith(_PRESENT)):
        return False
    fields = label[len(_PCI) : -len(_PRESENT)].split("_")
    return fields[0] == _VENDOR or (fields[0].startswith(_DISPLAY_CLASS) and fields[1:2] == [_VENDOR])


def other_plugins(nodes: Mapping[str, Neighbourhood]) -> Trouble | None:
    """Enrolled nodes with GPUs that another device plugin offers to the kubelet."""
    found = {name: node for name, node in nodes.items() if node.enrolled and node.resources}
    if not found:
        return None
    which = sorted({resource for node in found.values() for resource in node.resources})
    text = f"another device plugin offers GPUs of enrolled nodes as {listed(which)}: {listed(sorted(found))}"
    do = (
        "keep it off them. GPU operator: kubectl label --overwrite node NODE nvidia.com/gpu.deploy.device-plugin=false "
        "nvidia.com/gpu.deploy.operator-validator=false, or devicePlugin.enabled=false in its values; others: node "
        f"affinity {names.LABEL_MANAGED} DoesNotExist in its DaemonSet"
    )
    return Trouble(text, do)


def other_driver(nodes: Mapping[str, Neighbourhood], offering: Iterable[str]) -> Trouble | None:
    """Enrolled nodes with GPUs that NVIDIA's DRA driver offers. `offering`: the nodes of its ResourceSlices."""
    found = sorted({name for name in offering if (node := nodes.get(name)) and node.enrolled})
    if not found:
        return None
    text = f"NVIDIA's DRA driver ({DRA_DRIVER}) offers GPUs of enrolled nodes, so they can be given twice: "
    do = (
        "keep its kubelet plugin off them: resources.gpus.enabled=false in its chart's values (ComputeDomains stay), "
        "or a kubeletPlugin.nodeSelector that they lack; installed by the GPU operator: kubectl label --overwrite node "
        "NODE nvidia.com/gpu.deploy.dra-driver=false"
    )
    return Trouble(text + listed(found), do)


def without_gpu(nodes: Mapping[str, Neighbourhood]) -> Trouble | None:
    """Enrolled nodes on which Node Feature Discovery finds no NVIDIA GPU, where it finds one on another node: else it
    may be set up to report no such devices."""
    if not any(node.has_gpu and node.discovered for node in nodes.values()):
        return None
    found = sorted(name for name, node in nodes.items() if node.enrolled and node.discovered and not node.has_gpu)
    if not found:
        return None
    text = f"Node Feature Discovery finds no NVIDIA GPU on enrolled nodes: {listed(found)}"
    return Trouble(text, f"see lspci -d {_VENDOR}: there, or take the label {names.LABEL_MANAGED} away")


def not_enrolled(nodes: Mapping[str, Neighbourhood]) -> tuple[str, ...]:
    """Nodes with GPUs that no label says to be Kerf's or not."""
    return tuple(
        sorted(
            name
            for name, node in nodes.items()
            if (node.has_gpu or node.resources) and not node.enrolled and not node.asked
        )
    )


def listed(found: Sequence[str]) -> str:
    """The first three, and how many more."""
    more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    return ", ".join(found[:_NAMED]) + more
