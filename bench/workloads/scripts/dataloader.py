"""A DataLoader with four forked workers and pinned memory, and a spawned process that gets a CUDA "
"tensor and is killed."""

from __future__ import annotations

import time

import torch
from torch.utils.data import DataLoader, TensorDataset

from bench.workloads.scripts.report import say, seconds


def child(tensors: torch.multiprocessing.Queue, sums: torch.multiprocessing.Queue) -> None:
    tensor = tensors.get()
    sums.put(float(tensor.sum()))
    time.sleep(600)


if __name__ == "__main__":
    torch.zeros(1, device="cuda")
    rows = TensorDataset(torch.arange(4096 * 256, dtype=torch.float32).reshape(4096, 256))
    results: list[float] = []

    def load() -> None:
        for (batch,) in DataLoader(rows, batch_size=64, num_workers=4, pin_memory=True):
            results.append(float(batch.cuda(non_blocking=True).sum()))

    took = seconds(load)
    context = torch.multiprocessing.get_context("spawn")
    tensors, sums = context.Queue(), context.Queue()
    process = context.Process(target=child, args=(tensors, sums))
    process.start()
    shared = torch.ones(64 << 18, device="cuda")
    tensors.put(shared)
    results.append(sums.get(timeout=60))
    before = torch.cuda.mem_get_info()[0]
    process.kill()
    process.join()
    end = time.monotonic() + 10
    while torch.cuda.mem_get_info()[0] <= before and time.monotonic() < end:
        time.sleep(0.05)
    back = torch.cuda.mem_get_info()[0] - before
    del shared
    say(results, took, back_after_kill_mib=back >> 20)
