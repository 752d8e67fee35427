"""By turns: the memory limit is the interposer's, and time goes by rank, the lower in the gaps that the higher leave.

The turns themselves are rules in the pages (`rules.plan`), kept by the interposers within microseconds. What the interposer does
not reach takes its turns by the driver's process lock (`turns.py`).
"""

from __future__ import annotations

from services.node_agent.strategies.base import Unadjustable
from services.node_agent.strategies.interposer import Interposer
from services.node_agent.strategies.rules import Wish
from services.node_agent.strategies.slices import Key
from shared.model.gpu import Strategy
from shared.model.units import WHOLE_GPU_MILLI

CHOSEN = "a part of a GPU with memory alone, or of an opportunistic pod, on a node whose canary has proven the limits"


class TimeSlice(Interposer):
    name: Strategy = "time_slice"

    def adjust(self, key: Key, wish: Wish) -> None:
        """A rate means nothing to those who take what is left; a pause does."""
        if wish.compute_milli < WHOLE_GPU_MILLI:
            raise Unadjustable("a slice that shares by turns has no rate of its own; pause it instead")
        super().adjust(key, wish)
