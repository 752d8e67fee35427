"""By turns: the memory limit is the interposer's, and time goes by rank, the lower in the gaps that the higher leave.

The turns themselves are rules in the pages (`rules.plan`), kept by the interposers within microseconds. What the interposer does
not reach takes its turns by the driver's process lock (`turns.py`).
"""

from __future__ import annotations

from services.node_agent.strategies.interposer import Interposer
from shared.model.gpu import Strategy

CHOSEN = "a part of a GPU with memory alone, or of an opportunistic pod, on a node whose canary has proven the limits"


class TimeSlice(Interposer):
    name: Strategy = "time_slice"
