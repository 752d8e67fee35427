"""Which strategy serves a request, by what the node offers."""

from __future__ import annotations

import pytest

from shared.book.mig import serving
from shared.book.shares import limits_on, strategy_for
from shared.model.request import GpuAsk
from shared.model.strategies import StrategyName
from shared.model.strategy import Isolation

WHOLE = GpuAsk(count=1, whole=True, compute_milli=1000)
SHARE = GpuAsk(count=1, memory_mib=100, compute_milli=300)
MEMORY = GpuAsk(count=1, memory_mib=100)
BURST = GpuAsk(count=1, memory_mib=100, memory_limit_mib=300)
PROVEN: tuple[StrategyName, ...] = ("exclusive", "advisory", "interposer", "time_slice")
POLICING: tuple[StrategyName, ...] = (*PROVEN, "policed")


@pytest.mark.parametrize(
    ("ask", "isolation", "offered", "opportunistic", "expected"),
    [
        (WHOLE, "firm", PROVEN, False, "exclusive"),
        (SHARE, "soft", PROVEN, False, "interposer"),
        (MEMORY, "soft", PROVEN, False, "time_slice"),
        (SHARE, "firm", PROVEN, True, "time_slice"),
        (SHARE, "firm", ("exclusive", "advisory"), False, None),
        (MEMORY, "soft", ("exclusive", "advisory"), True, "advisory"),
        (SHARE, "firm", ("time_slice", "advisory"), False, "time_slice"),
        (MEMORY, "hard", PROVEN, False, None),
        (SHARE, "soft", POLICING, False, "interposer"),
        (SHARE, "firm", POLICING, False, "interposer"),
        (MEMORY, "firm", POLICING, True, "time_slice"),
        (SHARE, "firm", ("advisory", "policed"), False, None),
        (SHARE, "policed", POLICING, False, "policed"),
        (MEMORY, "policed", POLICING, True, "policed"),
        (SHARE, "policed", PROVEN, False, None),
        (SHARE, "hard", POLICING, False, None),
        (MEMORY, "hard", (*POLICING, "driver"), False, "driver"),
        (SHARE, "hard", (*POLICING, "driver"), False, None),
        (SHARE, "hard", (*POLICING, "driver"), True, "driver"),
        (MEMORY, "policed", (*POLICING, "driver"), False, "policed"),
        (MEMORY, "firm", ("advisory", "driver"), False, None),
        (WHOLE, "policed", POLICING, False, "exclusive"),
        (BURST, "soft", PROVEN, False, "time_slice"),
        (BURST, "soft", ("exclusive", "advisory"), False, None),
        (BURST, "policed", (*POLICING, "driver"), False, "policed"),
    ],
)
def test_reserved_time_is_metered_and_the_rest_is_time_sliced(
    ask: GpuAsk,
    isolation: Isolation,
    offered: tuple[StrategyName, ...],
    opportunistic: bool,
    expected: StrategyName | None,
) -> None:
    assert strategy_for(ask, isolation, offered, opportunistic=opportunistic) == expected


@pytest.mark.parametrize(
    ("ask", "isolation", "expected"),
    [
        (SHARE, "soft", "mps"),
        (MEMORY, "soft", "mps"),
        (SHARE, "firm", None),
        (WHOLE, "soft", "exclusive"),
        (GpuAsk(count=2, memory_mib=100), "soft", None),
        (GpuAsk(count=1, memory_mib=100, memory_limit_mib=300), "soft", None),
    ],
)
def test_mps_is_for_parts_of_one_gpu_whose_pod_asks_for_no_protection(
    ask: GpuAsk, isolation: Isolation, expected: StrategyName | None
) -> None:
    """A fault of a neighbour can end a client's work, a container can be a client of one daemon, and a client's limits
    are fixed when it starts."""
    assert strategy_for(ask, isolation, ("exclusive", "mps")) == expected


@pytest.mark.parametrize(
    ("ask", "limits"),
    [
        (MEMORY, (0, 0)),
        (BURST, (300, 0)),
        (GpuAsk(count=1, memory_mib=100, memory_limit_mib=5000), (1000, 0)),
        (GpuAsk(count=1, memory_mib=100, memory_limit_milli=50), (0, 0)),
        (GpuAsk(count=1, memory_mib=100, compute_milli=300, compute_limit_milli=600), (0, 600)),
        (GpuAsk(count=1, memory_milli=250, compute_milli=250, memory_limit_milli=800), (800, 0)),
    ],
)
def test_a_limit_is_at_most_the_gpu_and_only_one_above_the_share_counts(ask: GpuAsk, limits: tuple[int, int]) -> None:
    assert limits_on(ask, 1000) == limits


def test_no_mig_instance_serves_a_request_that_may_use_more() -> None:
    assert serving(0, GpuAsk(count=1, memory_mib=4096), 40960)
    assert serving(0, GpuAsk(count=1, memory_mib=4096, memory_limit_mib=8192), 40960) == ()
