"""CPU and memory that a node's usable GPUs will lack.

With b usable GPUs left of n, a fraction c of the CPU left and x = min(1, c / (b / n)), the imbalance is b (1 - x)^2, in
milli-GPU, and the same for memory: nothing while CPU and memory last as long as the GPUs do.
"""

from __future__ import annotations

from services.placement.jit import jit

_NOTHING_MILLI = 10.0


@jit
def imbalance(usable_milli: float, gpus: int, cpu_left: float, memory_left: float) -> float:
    """In milli-GPU. `cpu_left`, `memory_left`: fractions of the node's."""
    if usable_milli <= _NOTHING_MILLI:
        return 0.0
    left = usable_milli / (1000.0 * gpus)
    cpu, memory = min(1.0, cpu_left / left), min(1.0, memory_left / left)
    return usable_milli * ((1.0 - cpu) ** 2 + (1.0 - memory) ** 2)
