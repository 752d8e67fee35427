"""A program with worker processes."""

from __future__ import annotations

from bench.workloads.workload import Workload

WORKLOAD = Workload(
    name="dataloader",
    does="four workers forked after CUDA was initialised, one killed and replaced; two spawned ones with "
    "contexts, which "
    "open memory of the program by its handle, one killed with SIGKILL",
    source="torch.utils.data.DataLoader (fork), torch.multiprocessing (spawn, CUDA IPC)",
    checks="the account and the driver's figure with workers, after a kill and after their end",
    program="dataloader",
    rounds=2000,
    short_rounds=1000,
    memory_mib=4096,
    saturates=False,
    script="dataloader",
)
