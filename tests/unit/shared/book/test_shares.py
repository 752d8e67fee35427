"""Which strategy serves a request, by what the node offers."""

from __future__ import annotations

import pytest

from shared.book.shares import strategy_for
from shared.model.request import GpuAsk
from shared.model.strategies import StrategyName
from shared.model.strategy import Isolation

WHOLE = GpuAsk(count=1, whole=True, compute_milli=1000)
SHARE = GpuAsk(count=1, memory_mib=100, compute_milli=300)
MEMORY = GpuAsk(count=1, memory_mib=100)
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
    ],
)
def test_mps_is_for_parts_of_one_gpu_whose_pod_asks_for_no_protection(
    ask: GpuAsk, isolation: Isolation, expected: StrategyName | None
) -> None:
    """A fault of a neighbour can end a client's work, and a container can be a client of one daemon."""
    assert strategy_for(ask, isolation, ("exclusive", "mps")) == expected
