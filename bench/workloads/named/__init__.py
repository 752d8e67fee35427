"""The workloads, in the order in which they run."""

from __future__ import annotations

from bench.workloads.named import (
    cuda_graphs,
    dataloader,
    nccl_single_process,
    torch_compile,
    torch_serving,
    torch_training,
    vllm_allocator,
)
from bench.workloads.workload import Workload

WORKLOADS: dict[str, Workload] = {
    module.WORKLOAD.name: module.WORKLOAD
    for module in (
        torch_training,
        torch_serving,
        vllm_allocator,
        cuda_graphs,
        dataloader,
        nccl_single_process,
        torch_compile,
    )
}
