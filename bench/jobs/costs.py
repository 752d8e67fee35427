"""What a turn costs in the replay: copies of GPU memory to the host and back, host memory, and failures.

A suspension to the host stops the job, takes `fixed_s`, and then copies its GPU memory; a resumption the same in the
opposite direction. Each GPU copies on its own link, all GPUs of a job at once, and meanwhile nothing else may use what
the job has there.

Published figures of the driver's own copies (`cuda-checkpoint`, `cuCheckpointProcess*`): about 15 s a GPU on eight H100
with PCIe 5 (NVIDIA/cuda-checkpoint, issue 29), which is 5 GiB/s if all 80 GiB were in use, for that memory is not
pinned; and 2.7 s in the mean for reading the state of one process with 2 GiB (modal-labs/modal-client, pull request
3603, inside gVisor). Measured on an H200 with driver 580 (docs/decisions/0254): a training of 17 GiB left in 5.9 s and
was back in 2.7 s, with huge pages; the figures below say 4.9 s each way. A program that sleeps by itself and pins its
memory copies some 20 GiB/s (PCIe 4 with 16 lanes).
"""

from __future__ import annotations

from math import ceil
from pathlib import Path

import msgspec

from bench.jobs.trace import Job
from bench.openb.trace import GPU_MIB, read_rows
from shared.model.units import WHOLE_GPU_MILLI


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    copied_mib_per_s: float = 5 * 1024
    """Between a GPU and the host, in each direction."""
    fixed_s: float = 1.5
    """For each suspension and each resumption, whatever their size."""
    allocated: float = 1.0
    """Which part of the memory that a slice may have is copied, and needs room on the host. 1 is the worst case."""
    host_mib: int = 0
    """What the host has for the memory of suspended jobs."""
    failure: float = 0.0
    """Probability of a suspension that fails after `fixed_s`: the job stands still meanwhile, and then runs on."""
    seed: int = 1

    def mib(self, job: Job) -> int:
        """Host memory that the job takes while its memory is on the host."""
        return job.gpus * ceil(job.milli * GPU_MIB / WHOLE_GPU_MILLI * self.allocated)

    def copy_s(self, job: Job) -> float:
        """One way."""
        return self.fixed_s + self.mib(job) / job.gpus / self.copied_mib_per_s


def host_mib_per_gpu(nodes: Path, jobs: tuple[Job, ...]) -> int:
    """What a host has beside the running jobs, for each of its GPUs.

    Its memory is that of most of the list's nodes with eight GPUs. Running jobs keep what the trace's jobs request,
    weighted by GPU time, for of long jobs more run at any instant. OSError where the list cannot be read, ValueError
    where it is no such list or nothing would remain.
    """
    found = [
        int(row["memory_mib"]) // int(row["gpu"])
        for row in read_rows(nodes, ("memory_mib", "gpu"))
        if row["gpu"] == "8"
    ]
    if not found:
        raise ValueError(f"{nodes} has no node with eight GPUs; name --host-mib-per-gpu")
    usual = max(sorted(set(found)), key=found.count)
    kept = sum(job.host_mib * job.run_s for job in jobs) * WHOLE_GPU_MILLI // sum(job.work_milli_s for job in jobs)
    if kept >= usual:
        raise ValueError(f"the jobs request {kept} MiB a GPU, and the nodes have {usual}; name --host-mib-per-gpu")
    return usual - kept
