"""The environment variables that describe a container's slice: Kerf's own, and those of the pod's dialect.

Kerf's say what the container has, which of a MIG instance is all of it. Those of a dialect say what its pod requested:
its programs divide by the size of the device, and on an instance that is the instance's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from services.node_agent import messages as m
from shared.model.gpu import Gpu
from shared.model.grant import ContainerGrant, GpuShare, Grant
from shared.model.strategies import registered

Environment = tuple[str, ...]
_MIB_OF = {"GiB": 1024, "MiB": 1}


def kerf(order: m.HandOver) -> Environment:
    """Kerf's variables, in every container: sums over its GPUs, in MiB and in thousandths of one GPU.

    NVIDIA's container runtime injects GPUs by NVIDIA_VISIBLE_DEVICES, which CUDA images set to "all". "void" injects
    none; NVIDIA's own CDI specs set it, too.
    """
    gpus = order.share.gpus
    return (
        "NVIDIA_VISIBLE_DEVICES=void",
        f"KERF_GRANT={order.grant_id}",
        f"KERF_CONTAINER={order.container}",
        f"KERF_GPUS={','.join(gpu.uuid for gpu in gpus)}",
        f"KERF_GPU_MEMORY_MIB={_memory_mib(order.share)}",
        f"KERF_GPU_COMPUTE_MILLI={sum(gpu.compute_milli for gpu in gpus)}",
        f"KERF_STRATEGY={order.share.strategy}",
        *_limits(order.share),
    )


def _limits(share: ContainerGrant) -> Environment:
    """What the container may use while no slice is guaranteed it, if that is more than it has."""
    memory_mib = sum(gpu.memory_limit_mib or gpu.memory_mib for gpu in share.gpus)
    milli = sum(gpu.compute_limit_milli or gpu.compute_milli for gpu in share.gpus)
    return (
        *((f"KERF_GPU_MEMORY_LIMIT_MIB={memory_mib}",) if memory_mib > _memory_mib(share) else ()),
        *((f"KERF_GPU_COMPUTE_LIMIT_MILLI={milli}",) if milli > sum(gpu.compute_milli for gpu in share.gpus) else ()),
    )


def of_dialect(order: m.HandOver, grant: Grant, gpus: Mapping[str, Gpu], gpushare_unit: str) -> Environment:
    """The variables of the pod's dialect. Empty for Kerf's own requests and for dialects that have no variables."""
    tell = _DIALECTS.get(grant.dialect)
    return () if tell is None else tell(order, grant, gpus, gpushare_unit)


def _gpushare(order: m.HandOver, grant: Grant, gpus: Mapping[str, Gpu], unit: str) -> Environment:
    """As gpushare's device plugin sets them (pkg/gpu/nvidia/allocate.go): the device's index, and amounts in the
    configured unit, rounded down as there. The device is the first, as large as CUDA shows it: programs take
    CONTAINER / DEV of that. A MIG instance is one of its own size, and so is a slice whose memory Kerf limits."""
    mine = [gpus[share.uuid] for share in order.share.gpus if share.uuid in gpus]
    mib = _MIB_OF[unit]
    pod_mib = sum(_requested_mib(share) for share in grant.containers.values())
    sliced = registered()[order.share.strategy].limits_memory
    shown = (s.memory_mib for s in order.share.gpus if sliced or s.mig is not None)
    device_mib = next(shown, mine[0].memory_mib if mine else 0)
    return (
        f"ALIYUN_COM_GPU_MEM_IDX={','.join(str(gpu.index) for gpu in mine)}",
        f"ALIYUN_COM_GPU_MEM_POD={pod_mib // mib}",
        f"ALIYUN_COM_GPU_MEM_CONTAINER={_requested_mib(order.share) // mib}",
        f"ALIYUN_COM_GPU_MEM_DEV={device_mib // mib}",
    )


def _hami(order: m.HandOver, grant: Grant, gpus: Mapping[str, Gpu], unit: str) -> Environment:  # noqa: ARG001 - one form for all
    """As HAMi's device plugin sets them (pkg/device-plugin/nvidiadevice/nvinternal/plugin/server.go), and Volcano's,
    made from it: the memory of each GPU by its position in the container, and the percentage of SMs of one GPU. None on
    MIG instances, as there."""
    shares = [share for share in order.share.gpus if share.mig is None]
    limits = tuple(f"CUDA_DEVICE_MEMORY_LIMIT_{place}={share.memory_mib}m" for place, share in enumerate(shares))
    percent = shares[0].compute_milli // 10 if shares else 0
    return (*limits, f"CUDA_DEVICE_SM_LIMIT={percent}") if percent else limits


def _koordinator(order: m.HandOver, grant: Grant, gpus: Mapping[str, Gpu], unit: str) -> Environment:  # noqa: ARG001
    """As its koordlet sets them beside HAMi-core (pkg/koordlet/runtimehooks/hooks/gpu/gpu.go): of one GPU, the memory
    in bytes."""
    memory_mib, compute_milli = _requested(order.share.gpus[0])
    percent = compute_milli // 10
    limit = f"CUDA_DEVICE_MEMORY_LIMIT={memory_mib << 20}"
    return (limit, f"CUDA_DEVICE_SM_LIMIT={percent}") if percent else (limit,)


def _kai(order: m.HandOver, grant: Grant, gpus: Mapping[str, Gpu], unit: str) -> Environment:  # noqa: ARG001
    """As its admission and binder set them (pkg/admission/webhook/v1alpha2/gpusharing): the part of each GPU, or the
    number of whole ones."""
    shares = order.share.gpus
    memory_mib, each = _requested(shares[0])
    if not each:
        total_mib = gpus[shares[0].uuid].memory_mib if shares[0].uuid in gpus else 0
        each = memory_mib * 1000 // max(1, total_mib)
    part = f"{len(shares) if each == 1000 else each / 1000:g}"
    return (f"RUNAI_NUM_OF_GPUS={part}", f"GPU_PORTION={part}")


def _nos(order: m.HandOver, grant: Grant, gpus: Mapping[str, Gpu], unit: str) -> Environment:  # noqa: ARG001
    """As its device plugin sets it (docs/en/docs/dynamic-gpu-partitioning/getting-started-mps.md)."""
    return (f"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0={_requested_mib(order.share) // 1024}G",)


def _memory_mib(share: ContainerGrant) -> int:
    return sum(gpu.memory_mib for gpu in share.gpus)


def _requested_mib(share: ContainerGrant) -> int:
    return sum(_requested(gpu)[0] for gpu in share.gpus)


def _requested(share: GpuShare) -> tuple[int, int]:
    """(memory_mib, compute_milli) that were requested of a GPU: what is given, unless that is a larger MIG instance."""
    if share.mig is None or not (share.requested_mib or share.requested_milli):
        return share.memory_mib, share.compute_milli
    return share.requested_mib, share.requested_milli


_DIALECTS: Mapping[str, Callable[[m.HandOver, Grant, Mapping[str, Gpu], str], Environment]] = {
    "gpushare": _gpushare,
    "hami": _hami,
    "volcano": _hami,
    "koordinator": _koordinator,
    "kai": _kai,
    "nos": _nos,
}
