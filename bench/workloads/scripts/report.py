"""What all scripts share: memory beyond the slice, and the line that they print."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import torch

MIB = 1 << 20


def seconds(work: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    begun = time.monotonic()
    work()
    torch.cuda.synchronize()
    return round(time.monotonic() - begun, 4)


def say(results: list[float], took_s: float, **figures: float) -> None:
    """Asks for more than the slice has, works on, frees what is not used, and prints."""
    _, total = torch.cuda.mem_get_info()
    refused = False
    try:
        torch.empty(total + MIB, dtype=torch.uint8, device="cuda")
    except torch.cuda.OutOfMemoryError:
        refused = True
    goes_on = float(torch.ones(1024, device="cuda").sum()) == 1024
    peak = torch.cuda.max_memory_reserved()
    torch.cuda.empty_cache()
    left = {"left_mib": torch.cuda.memory_reserved() // MIB, "total_mib": total // MIB, "peak_mib": peak // MIB}
    exact = [value.hex() for value in results]
    print(
        json.dumps({"results": exact, "seconds": took_s, "refused": refused, "goes_on": goes_on} | left | figures),
        flush=True,
    )
