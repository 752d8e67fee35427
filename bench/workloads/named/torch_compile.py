"""Code that arrives while the program runs."""

from __future__ import annotations

from bench.workloads.workload import Workload

WORKLOAD = Workload(
    name="torch-compile",
    does="500 small modules and libraries, each launched as soon as it is loaded, partly as a dependent launch, while "
    "two threads launch and wait",
    source="Triton's driver (cuModuleLoadDataEx, cuLaunchKernelEx) under torch.compile; cuLibraryLoadData since "
    "CUDA 12",
    checks="the results of all three threads",
    program="torch_compile",
    rounds=2000,
    short_rounds=1500,
    memory_mib=2048,
    max_share_error_percent=8.0,
    script="torch_compile",
)
