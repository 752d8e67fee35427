"""A training in PyTorch."""

from __future__ import annotations

from bench.workloads.workload import Workload

WORKLOAD = Workload(
    name="torch-training",
    does="forward, backward and optimizer kernels of 6 to 60 us; batches from pinned memory on a stream of "
    "their own; the "
    "host reads the loss every 10 steps",
    source="c10/cuda/CUDACachingAllocator.cpp (blocks of 2 and 20 MiB, kept until the end), torch.optim, "
    "torch.utils.data with pin_memory",
    checks="the loss and all weights",
    program="torch_training",
    rounds=300,
    short_rounds=120,
    memory_mib=2048,
    max_share_error_percent=8.0,  # many short kernels of one function: an event costs 4 us, a change of contexts 200 us
    script="torch_training",
)
