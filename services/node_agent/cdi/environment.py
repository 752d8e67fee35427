"""What a container reads of its slice in its environment, whichever dialect its pod was written in."""

from __future__ import annotations

from services.node_agent import messages as m


def kerf(order: m.HandOver) -> tuple[str, ...]:
    """Kerf's own words, in every container: sums over its GPUs, in MiB and in per mille of one GPU."""
    gpus = order.share.gpus
    return (
        f"KERF_GRANT={order.grant_id}",
        f"KERF_CONTAINER={order.container}",
        f"KERF_GPUS={','.join(gpu.uuid for gpu in gpus)}",
        f"KERF_GPU_MEMORY_MIB={sum(gpu.memory_mib for gpu in gpus)}",
        f"KERF_GPU_COMPUTE_MILLI={sum(gpu.compute_milli for gpu in gpus)}",
        f"KERF_STRATEGY={order.share.strategy}",
    )
