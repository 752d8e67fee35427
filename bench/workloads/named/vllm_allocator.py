"""Memory as vLLM takes and returns it."""

from __future__ import annotations

from bench.workloads.workload import Workload

WORKLOAD = Workload(
    name="vllm-allocator",
    does="weights in an expandable segment, a KV cache that fills 90 % of the slice in one block, graphs for six batch "
    "sizes, sleep (unmap and release all) and wake (map again at the same addresses)",
    source="vllm/device_allocator/cumem.py and csrc/cumem_allocator.cpp; CUDACachingAllocator's ExpandableSegment; "
    "gpu_memory_utilization",
    checks="the account and the driver's figure asleep and awake; weights after the wake",
    program="vllm_allocator",
    rounds=2400,
    short_rounds=1200,
    memory_mib=4096,
)
