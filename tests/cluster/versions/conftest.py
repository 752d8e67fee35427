"""One API server for each version of Kubernetes that is tried: the oldest and the newest, or KERF_KUBERNETES=all."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from cli.ask import ask
from shared.contracts import queries
from shared.contracts.queries import InspectAnswer, InspectQuery
from tests.cluster.versions.site import Site, admission, chosen, site
from tests.support.waiting import eventually
from tests.support.whole import WITHIN_S, Whole, whole

FOLDER = Path(__file__).parent
_NUMBERS = itertools.count(1)


@pytest.fixture(scope="package", params=chosen(), ids=lambda minor: f"kubernetes-{minor}")
def kube(request: pytest.FixtureRequest) -> Iterator[Site]:
    with site(request.param) as made:
        yield made


@pytest.fixture(autouse=True)
def no_pods_are_left(kube: Site) -> Iterator[None]:
    """Else the next test's instance of Kerf would place them on its nodes."""
    yield
    for pod in kube.call("GET", "/api/v1/pods")["items"]:
        meta = pod["metadata"]
        kube.call("DELETE", f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}?gracePeriodSeconds=0")


@pytest.fixture
async def world(kube: Site) -> AsyncIterator[Whole]:
    """All of Kerf on that server, with two nodes of two GPUs of 40 GiB, and its webhook."""
    async with admission(kube), whole(kube.plane, f"whole-{next(_NUMBERS)}") as cluster:

        async def both() -> bool:
            """Else the first reason of a pod that waits tells of one node alone."""
            found = await ask(cluster.made.bus, queries.INSPECT.subject, InspectQuery(), InspectAnswer)
            return [node.ready and node.synced for node in found.nodes] == [True, True]

        await eventually(both, within_s=WITHIN_S, every_s=0.05, what="both nodes have room")
        yield cluster


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups, whichever folder the run was started with
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One worker runs all tests of a version, or each would start a server of it."""
    for item in items:
        callspec = getattr(item, "callspec", None)
        if FOLDER in item.path.parents and callspec is not None and "kube" in callspec.params:
            item.add_marker(pytest.mark.xdist_group(f"kubernetes-{callspec.params['kube']}"))
            item.add_marker(pytest.mark.cluster)
