"""The strategy `policed`: the interposer's limits, and the agent ends a pod that is beyond its slice by any other way.

In the container it is the strategy `interposer` for a slice with reserved compute, and `time_slice` for one without:
`rules.plan` tells them apart by the slice. From outside, `police.py` compares NVML's figures with the grant.
"""

from __future__ import annotations

from services.node_agent.strategies.interposer import Interposer


class Policed(Interposer):
    """As the interposer: what is beyond the slice is found and ended by the agent's police."""
