"""A compiled function: Triton's kernels are made and loaded while another stream works."""

from __future__ import annotations

import torch

from bench.workloads.scripts.report import say, seconds

torch.manual_seed(1)
values = torch.randn(1024, 1024, device="cuda") / 32
beside = torch.cuda.Stream()
results: list[float] = []


def compile_and_run() -> None:
    for scale in (1.0, 2.0, 3.0):
        with torch.cuda.stream(beside):
            other = values @ values
        compiled = torch.compile(lambda x, scale=scale: torch.nn.functional.gelu(x @ x) * scale + 1)
        results.append(float(compiled(values).sum()))
        results.append(float(other.sum()))


took = seconds(compile_and_run)
say(results, took)
