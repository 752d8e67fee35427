"""A training in PyTorch with the same losses in every run: `python torch_training.py LOG DATA_MIB SEED`.

A decoder of 0.4 billion parameters with AdamW, and DATA_MIB of tokens on the GPU from which it draws its batches: with
4096 it has some 20 GiB there. After each step it appends a line to LOG: the step's number, the time of its end in ns of
CLOCK_MONOTONIC, and the loss, exactly, in hexadecimal. SIGTERM ends it after the step that runs; then it prints how
much memory it had, in MiB, as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS is deterministic with it

import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

WIDTH, LAYERS, HEADS, VOCABULARY, BATCH, LENGTH = 2048, 8, 16, 8192, 16, 512


class Block(nn.Module):  # type: ignore[misc]
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.to_heads, self.from_heads = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wider, self.narrower = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        query, key, value = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.to_heads(self.before(x)).chunk(3, dim=-1)
        )
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.from_heads(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.narrower(functional.gelu(self.wider(self.between(x))))


class Decoder(nn.Module):  # type: ignore[misc]
    def __init__(self, width: int, layers: int, heads: int, vocabulary: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(LENGTH, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.last, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.last(x))


def train(log: str, data_mib: int, seed: int, device: str = "cuda", shape: tuple[int, ...] = ()) -> None:
    width, layers, heads, vocabulary = shape or (WIDTH, LAYERS, HEADS, VOCABULARY)
    ending: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: ending.append(number))
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(seed)
    data = torch.randint(0, vocabulary, (data_mib << 20 >> 3,), device=device)  # 8 bytes each
    with torch.device(device):
        net = Decoder(width, layers, heads, vocabulary)
    optimizer = torch.optim.AdamW(net.parameters(), 1e-4, fused=True)
    draw = torch.Generator().manual_seed(seed)
    with open(log, "a", buffering=1) as file, sdpa_kernel(SDPBackend.MATH):
        step = 0
        while not ending:
            at = torch.randint(0, len(data) - LENGTH - 1, (BATCH,), generator=draw)
            batch = torch.stack([data[i : i + LENGTH + 1] for i in at.tolist()])
            with torch.autocast(device, dtype=torch.bfloat16):
                said = net(batch[:, :-1])
                loss = functional.cross_entropy(said.reshape(-1, vocabulary).float(), batch[:, 1:].reshape(-1))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            exact = loss.item().hex()  # waits for the step
            file.write(f"{step} {time.monotonic_ns()} {exact}\n")
            step += 1
    mib = torch.cuda.memory_reserved() >> 20 if device == "cuda" else 0
    print(json.dumps({"steps": step, "memory_mib": mib, "torch": torch.__version__}), flush=True)


if __name__ == "__main__":
    train(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
