"""Every test here runs on the simulated cluster, and on a real API server by WatchList and by paged list."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.contract.cluster_source.harness import SourceHarness, real, simulated
from tests.support.cluster import control_plane

__all__ = ["control_plane"]

REAL = [pytest.mark.cluster]


@pytest.fixture(
    params=["simulated", pytest.param("kubernetes", marks=REAL), pytest.param("kubernetes-paged", marks=REAL)]
)
async def cluster(request: pytest.FixtureRequest) -> AsyncIterator[SourceHarness]:
    if request.param == "simulated":
        async with simulated() as harness:
            yield harness
        return
    plane = request.getfixturevalue("control_plane")
    async with real(plane, watch_list=request.param == "kubernetes") as harness:
        yield harness
