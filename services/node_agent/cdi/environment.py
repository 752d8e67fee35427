"""What a container reads of its slice in its environment: in Kerf's words always, and in those of the pod's dialect."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from services.node_agent import messages as m
from shared.model.gpu import Gpu
from shared.model.grant import ContainerGrant, Grant

Environment = tuple[str, ...]
_MIB_OF = {"GiB": 1024, "MiB": 1}


def kerf(order: m.HandOver) -> Environment:
    """In every container: sums over its GPUs, in MiB and in per mille of one GPU.

    NVIDIA's container runtime adds GPUs by NVIDIA_VISIBLE_DEVICES, which CUDA's images set to "all". "void" is its word
    for none; its own CDI specs say the same.
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
    )


def of_dialect(order: m.HandOver, grant: Grant, gpus: Mapping[str, Gpu], gpushare_unit: str) -> Environment:
    """Empty for pods in Kerf's own words, and for dialects without an environment of their own."""
    tell = _DIALECTS.get(grant.dialect)
    return () if tell is None else tell(order, grant, gpus, gpushare_unit)


def _gpushare(order: m.HandOver, grant: Grant, gpus: Mapping[str, Gpu], unit: str) -> Environment:
    """As gpushare's device plugin writes it (pkg/gpu/nvidia/allocate.go): index of the device, and amounts in the
    installation's unit, rounded down like its own."""
    mine = [gpus[share.uuid] for share in order.share.gpus if share.uuid in gpus]
    mib = _MIB_OF[unit]
    pod_mib = sum(_memory_mib(share) for share in grant.containers.values())
    return (
        f"ALIYUN_COM_GPU_MEM_IDX={','.join(str(gpu.index) for gpu in mine)}",
        f"ALIYUN_COM_GPU_MEM_POD={pod_mib // mib}",
        f"ALIYUN_COM_GPU_MEM_CONTAINER={_memory_mib(order.share) // mib}",
        f"ALIYUN_COM_GPU_MEM_DEV={(mine[0].memory_mib if mine else 0) // mib}",
    )


def _hami(order: m.HandOver, grant: Grant, gpus: Mapping[str, Gpu], unit: str) -> Environment:  # noqa: ARG001 - one form for all
    """As HAMi's device plugin writes it (pkg/device-plugin/nvidiadevice/nvinternal/plugin/server.go): memory of each GPU by
    its place in the container, and the percentage of SMs of one."""
    shares = order.share.gpus
    limits = tuple(f"CUDA_DEVICE_MEMORY_LIMIT_{place}={share.memory_mib}m" for place, share in enumerate(shares))
    percent = shares[0].compute_milli // 10 if shares else 0
    return (*limits, f"CUDA_DEVICE_SM_LIMIT={percent}") if percent else limits


def _memory_mib(share: ContainerGrant) -> int:
    return sum(gpu.memory_mib for gpu in share.gpus)


_DIALECTS: Mapping[str, Callable[[m.HandOver, Grant, Mapping[str, Gpu], str], Environment]] = {
    "gpushare": _gpushare,
    "hami": _hami,
}
