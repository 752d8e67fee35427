"""What PyTorch does on a GPU, in a slice or not: `python -m bench.on_gpu.pytorch KIND,... [--seconds 6]`.

Of each kind a line of JSON, with the free and total memory that PyTorch sees, what it has reserved, and what NVML
reports for the process, in MiB. Those that measure a rate run for `--seconds`, and tell the clock and the power beside
it: `sm_mhz` and `watts`, means of readings 20 ms apart, and in how many percent of them power limited the clock.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

import pynvml
import torch
from torch import nn

MIB = 1 << 20
Figures = dict[str, Any]


def memory() -> Figures:
    free, total = torch.cuda.mem_get_info()
    return {"free": free // MIB, "total": total // MIB, "reserved": torch.cuda.memory_reserved() // MIB, "nvml": seen()}


def seen() -> int | None:
    """The memory of this process as NVML reports it, in MiB; None if it does not."""
    pynvml.nvmlInit()
    gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
    mine = [each.usedGpuMemory for each in pynvml.nvmlDeviceGetComputeRunningProcesses(gpu) if each.pid == os.getpid()]
    return mine[0] // MIB if mine and mine[0] is not None else None


class Clocks:
    """Reads the GPU's clock and power in a thread, from the start of the block to its end."""

    def __init__(self) -> None:
        pynvml.nvmlInit()
        self._gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
        self._readings: list[tuple[int, int, bool]] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._read)

    def __enter__(self) -> Clocks:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _read(self) -> None:
        while not self._over.wait(0.02):
            why = pynvml.nvmlDeviceGetCurrentClocksEventReasons(self._gpu)
            self._readings.append((
                pynvml.nvmlDeviceGetClockInfo(self._gpu, pynvml.NVML_CLOCK_SM),
                pynvml.nvmlDeviceGetPowerUsage(self._gpu),
                bool(why & pynvml.nvmlClocksEventReasonSwPowerCap),
            ))  # fmt: skip

    def figures(self) -> Figures:
        mhz, milliwatts, limited = zip(*self._readings, strict=True)
        return {
            "sm_mhz": round(sum(mhz) / len(mhz)),
            "watts": round(sum(milliwatts) / len(milliwatts) / 1000),
            "power_limited_percent": round(100 * sum(limited) / len(limited)),
        }


def rate(name: str, seconds: float, once: Callable[[int], None]) -> Figures:
    """How often `once` was called in a second, by this name; it gets the number of the call."""
    torch.cuda.synchronize()
    begun, number = time.monotonic(), 0
    with Clocks() as clocks:
        while time.monotonic() - begun < seconds:
            once(number)
            number += 1
        torch.cuda.synchronize()
        calls_per_s = round(number / (time.monotonic() - begun), 1)
    return {name: calls_per_s} | clocks.figures()


def oom(_: float) -> Figures:
    """Takes memory until none is left, twice, and frees it."""
    got: list[int] = []
    for _again in range(2):
        held = []
        try:
            while True:
                held.append(torch.empty(64 * MIB, dtype=torch.uint8, device="cuda"))
        except torch.OutOfMemoryError:
            got.append(64 * len(held))
        full = memory()
        held.clear()
        torch.cuda.empty_cache()
    return {"got_mib": got, "full": full}


def step(seconds: float) -> Figures:
    """Steps of a training with pinned batches."""
    net = nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(24)]).cuda()
    optimizer = torch.optim.SGD(net.parameters(), 1e-3)
    data = torch.randn(512, 2048).pin_memory()

    def once(_number: int) -> None:
        optimizer.zero_grad(set_to_none=True)
        net(data.cuda(non_blocking=True)).square().mean().backward()
        optimizer.step()

    for number in range(20):
        once(number)
    return rate("steps_per_s", seconds, once)


def graph(seconds: float) -> Figures:
    """Replays of a graph of 20 products of 4096 x 4096 in bf16, up to four of them queued."""
    a, stream = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16), torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            b = a @ a
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        for _ in range(20):
            b = a @ a
    del b

    def once(number: int) -> None:
        captured.replay()
        if number % 4 == 3:
            torch.cuda.synchronize()

    return rate("replays_per_s", seconds, once)


def idle(seconds: float) -> Figures:
    """Bursts of short kernels; the program learns of their end by pinned memory, so by no call."""
    a, flag = torch.ones(256, 256, device="cuda"), torch.zeros(1, pin_memory=True)

    def once(_number: int) -> None:
        for _ in range(4):
            b = a @ a
        flag.copy_(b[0, :1], non_blocking=True)
        time.sleep(0.02)

    return rate("bursts_per_s", seconds, once)


def copies(seconds: float) -> Figures:
    """A copy of 256 MiB between short kernels on one stream."""
    source = torch.empty(256 * MIB, dtype=torch.uint8).pin_memory()
    target, a = torch.empty_like(source, device="cuda"), torch.ones(256, 256, device="cuda")

    def once(_number: int) -> None:
        a @ a
        target.copy_(source, non_blocking=True)
        a @ a
        torch.cuda.synchronize()

    return rate("rounds_per_s", seconds, once)


def loader(_: float) -> Figures:
    """A DataLoader with worker processes and pinned batches."""
    from torch.utils.data import DataLoader, TensorDataset  # noqa: PLC0415 - only this one needs it

    data = TensorDataset(torch.randn(4096, 256))
    rows = 0
    for (batch,) in DataLoader(data, batch_size=64, num_workers=4, pin_memory=True):
        rows += len(batch.cuda(non_blocking=True))
    return {"rows": rows}


def _summed(there: Any, back: Any, done: Any) -> None:
    tensor = there.get()
    back.put(float(tensor.sum()))
    done.wait()


def ipc(_: float) -> Figures:
    """Memory that another process opens."""
    import torch.multiprocessing as mp  # noqa: PLC0415 - only this one needs it

    context = mp.get_context("spawn")
    there, back, done = context.SimpleQueue(), context.SimpleQueue(), context.Event()
    child = context.Process(target=_summed, args=(there, back, done))
    child.start()
    there.put(torch.ones(256 * MIB // 4, device="cuda"))
    total = back.get()
    both = memory()
    done.set()
    child.join()
    return {"sum": total, "both": both}


def nccl(_: float) -> Figures:
    """A collective of one process."""
    import torch.distributed as dist  # noqa: PLC0415 - only this one needs it

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    dist.init_process_group("nccl", init_method=f"tcp://127.0.0.1:{port}", rank=0, world_size=1)
    tensor = torch.ones(1 << 20, device="cuda")
    dist.all_reduce(tensor)
    torch.cuda.synchronize()
    full = memory()
    dist.destroy_process_group()
    return {"sum": float(tensor.sum()), "full": full}


def compiled(_: float) -> Figures:
    """A compiled function."""
    work = torch.compile(lambda v: nn.functional.gelu(v @ v) + 1)
    return {"shape": list(work(torch.randn(1024, 1024, device="cuda")).shape)}


KINDS: dict[str, Callable[[float], Figures]] = {
    "oom": oom,
    "step": step,
    "graph": graph,
    "idle": idle,
    "copies": copies,
    "loader": loader,
    "ipc": ipc,
    "nccl": nccl,
    "compile": compiled,
}


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("kinds", help=f"some of {', '.join(KINDS)}, separated by commas")
    arguments.add_argument("--seconds", type=float, default=6)
    asked = arguments.parse_args()
    torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    print(json.dumps({"kind": "context"} | memory()), flush=True)
    for name in asked.kinds.split(","):
        print(json.dumps({"kind": name} | KINDS[name](asked.seconds) | memory()), flush=True)


if __name__ == "__main__":
    main()
