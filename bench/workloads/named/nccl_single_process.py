"""Collectives of several GPUs in one process."""

from __future__ import annotations

from bench.workloads.workload import Workload

WORKLOAD = Workload(
    name="nccl-single-process",
    does="a thread for each of two GPUs; kernels that spin until the other GPU's has come; code that is loaded lazily "
    "behind the first of them; peer access, copies, a handle",
    source="ncclCommInitAll; CUDA programming guide, Lazy Loading, on concurrent execution",
    checks="that it ends: a lock held during the driver's launch stops it for ever",
    program="nccl_single_process",
    rounds=2000,
    short_rounds=800,
    memory_mib=2048,
    devices=2,
    saturates=False,
    max_time_factor=3.0,
    script="nccl_single_process",
)
