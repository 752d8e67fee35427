"""A real node for the tests of this folder: one sandbox per session, one namespace and all of Kerf per test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.node.cluster import NodeCluster, cluster_on
from tests.support import manifests
from tests.support.cluster import binaries_or_skip
from tests.support.whole import policed_plane
from tools.binaries import NODE
from tools.sandbox import Sandbox, why_not
from tools.sandbox.agent import Gpus

FOLDER = Path(__file__).parent
GPUSHARE_IMAGE = "docker.io/cheyang/gpu-player:v2"


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups, whichever folder the run was started with
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One worker runs them all: the machine has room for one kubelet."""
    for item in items:
        if FOLDER in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("node"))


@pytest.fixture(scope="session")
def sandbox() -> Iterator[Sandbox]:
    reason = why_not()
    if reason:
        pytest.skip(f"NO REAL KUBELET, so the hand-over to containers is NOT TESTED on this machine: {reason}")
    binaries = binaries_or_skip(*NODE)
    with policed_plane() as plane:
        manifests.apply_all(plane, "25-")
        made = Sandbox(plane, binaries, images={GPUSHARE_IMAGE: []})
        made.start()
        try:
            yield made
        finally:
            made.stop()


@pytest.fixture
def gpus(tmp_path: Path) -> Gpus:
    return Gpus(tmp_path)


@pytest.fixture
async def cluster(sandbox: Sandbox, gpus: Gpus) -> AsyncIterator[NodeCluster]:
    async with cluster_on(sandbox, gpus) as running:
        yield running
