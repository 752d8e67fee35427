"""Code that arrives while the program runs."""

from __future__ import annotations

from bench.workloads.workload import Workload

WORKLOAD = Workload(
    name="torch-compile",
    does="2,000 small modules and libraries, each loaded and launched at once, partly as a dependent launch, while two "
    "threads launch and wait",
    source="Triton's driver (cuModuleLoadDataEx, cuLaunchKernelEx) under torch.compile; cuLibraryLoadData since "
    "CUDA 12",
    checks="the results of all three threads",
    program="torch_compile",
    rounds=2000,
    short_rounds=1500,
    memory_mib=2048,
    script="torch_compile",
)
