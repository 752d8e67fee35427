"""CUDA graphs with memory of their own."""

from __future__ import annotations

from bench.workloads.workload import Workload

WORKLOAD = Workload(
    name="cuda-graphs",
    does="captures a graph with allocations in it and one without, replays them, destroys them and trims the "
    "graphs' pool",
    source="torch.cuda.graphs; CUDA programming guide, Graph Memory Nodes",
    checks="the account after the destruction",
    program="cuda_graphs",
    rounds=3000,
    short_rounds=1500,
    memory_mib=2048,
    script="cuda_graphs",
)
