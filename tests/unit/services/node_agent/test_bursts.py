"""Which pod loses lent memory first."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from services.node_agent.bursts import Bursts


def price(restart_cost_s: int | None, *, ran_s: int) -> int:
    """Of a pod with one whole GPU, in GPU-seconds."""
    part = SimpleNamespace(uuid="GPU-1", compute_milli=1000, memory_mib=0)
    registry = SimpleNamespace(
        slices=[SimpleNamespace(uid="u", key=("u", "main"), rank=(0, 0), parts=(part,))], age_s=lambda _: ran_s
    )
    held = SimpleNamespace(grant=SimpleNamespace(grant=SimpleNamespace(restart_cost_s=restart_cost_s)))
    agent = SimpleNamespace(store=SimpleNamespace(find_by_pod=lambda _: held))
    bursts: Any = SimpleNamespace(_registry=registry, _agent=agent, _sizes=dict)
    _, gpu_ms, _ = Bursts._price(bursts, "u")
    return gpu_ms // 1000


@pytest.mark.parametrize(("restart_cost_s", "expected"), [(None, 60), (5, 5), (999_999_999, 3_660)])
def test_a_pod_loses_what_it_says_within_what_it_can_lose(restart_cost_s: int | None, expected: int) -> None:
    assert price(restart_cost_s, ran_s=60) == expected
