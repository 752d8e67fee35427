"""The strategy `time_slice`: the interposer enforces memory, and GPU time goes by rank.

A slice of lower rank runs while those of higher rank are idle. The precedence is part of the rules in the control
blocks (`rules.plan`), and the interposers apply it within microseconds. Processes that bypass the interposer are
time-sliced with the CUDA driver's process locks (`time_slicing.py`).
"""

from __future__ import annotations

from services.node_agent.strategies.interposer import Interposer


class TimeSlice(Interposer):
    """As the interposer: the slice registry plans the ranks into the rules of the same control blocks."""
