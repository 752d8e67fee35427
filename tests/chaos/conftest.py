"""One world for all tests of this folder, with its own control plane, because it is killed and restarted."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.chaos.cluster import ChaosCluster, chaos_cluster
from tests.support.cluster import control_plane, own_control_plane
from tools.control_plane import ControlPlane

__all__ = ["control_plane", "own_control_plane"]


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def cluster(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ChaosCluster]:
    async with chaos_cluster(control_plane, tmp_path_factory.mktemp("chaos")) as running:
        yield running
