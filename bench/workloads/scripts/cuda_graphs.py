"""A captured graph of matrix products, replayed 1,000 times."""

from __future__ import annotations

import torch

from bench.workloads.scripts.report import say, seconds

torch.manual_seed(1)
matrix = torch.randn(2048, 2048, device="cuda") / 64
state = torch.randn(2048, 2048, device="cuda")
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    for _ in range(3):
        torch.tanh(state @ matrix)
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    for _ in range(10):
        state.copy_(torch.tanh(state @ matrix))


def replay() -> None:
    for count in range(1000):
        graph.replay()
        if count % 50 == 49:
            torch.cuda.synchronize()


took = seconds(replay)
say([float(state.sum())], took)
