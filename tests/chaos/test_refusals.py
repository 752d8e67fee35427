"""The churn's refusals are those of a real API server, and they hit the watchers alone."""

from __future__ import annotations

import asyncio
from typing import get_args

import pytest

from shared.contracts.base import encode
from shared.kube.client import connect
from shared.kube.transport import Response, Transport
from tests.chaos.churn.refusals import Refusal, Refusals
from tests.chaos.cluster import ChaosCluster
from tests.support.waiting import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.xdist_group("chaos"), pytest.mark.asyncio(loop_scope="session")]
AT_ONCE = 20
STATUS: dict[Refusal, int] = {"throttle": 429, "webhook": 500}


async def bind(kube: Transport) -> Response:
    """To a pod that there is not, so that the answer is 404 unless the request is refused before."""
    body = {"metadata": {"name": "nobody"}, "target": {"kind": "Node", "name": "chaos-0"}}
    return await kube.request("POST", "/api/v1/namespaces/default/pods/nobody/binding", encode(body))


async def answered(kube: Transport, status: int) -> Response:
    """The first answer with this status, of many requests at the same time, again and again."""

    async def when_answered() -> Response | None:
        responses = await asyncio.gather(*(bind(kube) for _ in range(AT_ONCE)))
        return next((response for response in responses if response.status == status), None)

    found: Response = await eventually(when_answered, within_s=30, every_s=0.1, what=f"an answer with {status}")
    return found


@pytest.mark.parametrize("refusal", get_args(Refusal))
async def test_the_watchers_alone_are_refused(cluster: ChaosCluster, refusal: Refusal) -> None:
    refusals = Refusals(cluster.site.plane.request)
    await refusals.prepare()
    watcher = await connect(str(cluster.site.plane.service_account("kerf-system", "kerf-watcher")))
    try:
        await answered(watcher, 404)
        refusals.begin(refusal)
        await refusals.carry_out()
        refused = await answered(watcher, STATUS[refusal])
        assert (refused.retry_after_s > 0) == (refusal == "throttle")
        others = await asyncio.gather(*(bind(cluster.site.kube) for _ in range(AT_ONCE)))
        assert {other.status for other in others} == {404}
        refusals.end(refusal)
        await refusals.carry_out()
        await answered(watcher, 404)
    finally:
        refusals.end_all()
        await refusals.carry_out()
        await watcher.close()
