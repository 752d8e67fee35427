"""Steps of a training with optimizer and pinned batches; the loss is read every 10 steps."""

from __future__ import annotations

import torch

from bench.workloads.scripts.report import say, seconds

torch.manual_seed(1)
net = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048) for _ in range(12)]).cuda()
optimizer = torch.optim.AdamW(net.parameters(), 1e-4)
data = torch.randn(512, 2048).pin_memory()
losses: list[float] = []


def train() -> None:
    for step in range(300):
        optimizer.zero_grad(set_to_none=True)
        loss = net(data.cuda(non_blocking=True)).square().mean()
        loss.backward()
        optimizer.step()
        if step % 10 == 9:
            losses.append(float(loss))


took = seconds(train)
say(losses, took)
