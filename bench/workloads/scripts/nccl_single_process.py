"""Two GPUs in one process: NCCL's broadcast and reduce between them, and matrix products on each."""

from __future__ import annotations

import torch
from torch.cuda import nccl

from bench.workloads.scripts.report import say, seconds

torch.manual_seed(1)
parts = [torch.randn(1 << 20).cuda(gpu) for gpu in range(2)]
matrices = [(torch.randn(1024, 1024) / 32).cuda(gpu) for gpu in range(2)]


def collect() -> None:
    for _ in range(200):
        nccl.all_reduce(parts)
        for gpu in range(2):
            parts[gpu].mul_(0.5)
            matrices[gpu] = torch.tanh(matrices[gpu] @ matrices[gpu])
    for gpu in range(2):
        torch.cuda.synchronize(gpu)


took = seconds(collect)
say([float(part.sum()) for part in parts] + [float(matrix.sum()) for matrix in matrices], took)
