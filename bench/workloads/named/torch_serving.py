"""Short requests with pauses, as a PyTorch model behind a server."""

from __future__ import annotations

from bench.workloads.workload import Workload

WORKLOAD = Workload(
    name="torch-serving",
    does="bursts of five requests of 1 ms, 4 ms apart, then 40 ms without work; the end of each is polled by an event",
    source="torch.cuda.Event.query; bursts as request batchers send them",
    checks="latencies at p50 and p99; the output of every request",
    program="torch_serving",
    rounds=200,
    short_rounds=60,
    memory_mib=2048,
    saturates=False,
    script="torch_serving",
)
