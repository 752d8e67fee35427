"""Bursts of short requests with pauses; the end of each is polled by an event."""

from __future__ import annotations

import time

import torch

from bench.workloads.scripts.report import say, seconds

torch.manual_seed(1)
weight = torch.randn(2048, 2048, device="cuda")
host = torch.randn(64, 2048).pin_memory()
latencies: list[float] = []
outputs: list[float] = []


def serve() -> None:
    due = time.monotonic()
    for request in range(300):
        time.sleep(max(0.0, due - time.monotonic()))
        value, done = host.cuda(non_blocking=True), torch.cuda.Event()
        for _ in range(12):
            value = torch.tanh(value @ weight)
        done.record()
        while not done.query():
            time.sleep(20e-6)
        latencies.append(time.monotonic() - due)
        outputs.append(float(value[0, 0]))
        due += 0.04 if request % 5 == 4 else 0.004


took = seconds(serve)
latencies.sort()
say(outputs[-5:], took, p50_ms=1e3 * latencies[150], p99_ms=1e3 * latencies[297])
