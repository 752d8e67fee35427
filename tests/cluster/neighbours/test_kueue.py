"""The real Kueue in front of Kerf on a real API server: it admits jobs by quota, and Kerf finds the GPUs.

Kueue is built from sigs.k8s.io/kueue (tools/programs/kueue); what it counts is in its pkg/workload/workload.go
(applyResourceTransformations), and the objects are those of docs/examples/kueue.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from shared.model.grant import decode_grant
from tests.cluster.test_admission_webhook import webhook
from tests.support.kueue import EXAMPLES, Kueue, kueue
from tests.support.neighbours import Document, controller_or_skip, documents
from tests.support.waiting import eventually
from tests.support.whole import Whole, policed_plane, whole
from tools.control_plane import ControlPlane

pytestmark = pytest.mark.cluster
WITHIN_S = 120.0
TEAM = "team"
GROUP = "/apis/kueue.x-k8s.io/v1beta2"
GATE = "kueue.x-k8s.io/admission"


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    controller_or_skip("kueue")
    with policed_plane() as made:
        yield made


@pytest.fixture(scope="module")
def running_kueue(plane: ControlPlane) -> Iterator[Kueue]:
    with tempfile.TemporaryDirectory(prefix="kerf-kueue-") as state, kueue(plane, Path(state)) as made:
        yield made


class Queued:
    """Kerf, Kueue and a namespace with a queue, as their user sees them."""

    def __init__(self, world: Whole, made: Kueue) -> None:
        self.world, self.kueue, self.space = world, made, world.namespace

    async def create(self, document: Document, name: str = "") -> Document:
        """As an example has it, in this test's namespace."""
        meta = dict(document["metadata"])
        if "namespace" in meta:
            meta |= {"namespace": self.space}
        document = document | {"metadata": meta | ({"name": name} if name else {})}
        status, answer = await asyncio.to_thread(self.kueue.create, document)
        assert status in (201, 409), answer.decode()
        return json.loads(answer)  # type: ignore[no-any-return]

    async def apply(self, file: str) -> None:
        """An example; with a ClusterQueue for this test alone, for jobs of other tests stay in theirs."""
        for document in documents(EXAMPLES / file):
            if document["kind"] == "LocalQueue":
                document["spec"]["clusterQueue"] = self.space
            await self.create(document, name=self.space if document["kind"] == "ClusterQueue" else "")

    async def get(self, path: str) -> Any:
        return await self.world.ask("GET", path)

    async def until(self, condition: Any, what: str) -> Any:
        async def looked() -> Any:
            self.kueue.check()
            return await condition()

        return await eventually(looked, within_s=WITHIN_S, every_s=0.1, what=what)

    async def pods(self, job: str) -> list[Document]:
        path = f"/api/v1/namespaces/{self.space}/pods?labelSelector=batch.kubernetes.io/job-name={job}"
        return list((await self.get(path))["items"])

    async def workload(self, prefix: str) -> Document | None:
        """That of a Job is named after it, with a hash: `job-train-` is not meant to be `job-train-hami-…`."""
        found = (await self.get(f"{GROUP}/namespaces/{self.space}/workloads"))["items"]
        named = re.compile(re.escape(prefix) + "[^-]*")
        return next((one for one in found if named.fullmatch(one["metadata"]["name"])), None)

    async def counted(self, prefix: str) -> int:
        """The thousandths of a GPU that Kueue has reserved for a workload."""

        async def there() -> list[Document] | None:
            found = await self.workload(prefix)
            return (found or {}).get("status", {}).get("admission", {}).get("podSetAssignments")

        sets = await self.until(there, f"Kueue admits {prefix}")
        return sum(int(float(str(one["resourceUsage"]["kerf.dev/quota-gpu-milli"]).replace("k", "e3"))) for one in sets)

    async def bound(self, job: str, count: int) -> list[Document]:
        async def all_bound() -> list[Document] | None:
            found = await self.pods(job)
            return found if len(found) == count and all(pod["spec"].get("nodeName") for pod in found) else None

        return list(await self.until(all_bound, f"{count} pods of {job} bound"))

    async def waits(self, prefix: str) -> str:
        """What Kueue says of a workload for which its queue has no room."""

        async def told() -> str:
            found = await self.workload(prefix)
            conditions = (found or {}).get("status", {}).get("conditions", ())
            return next(
                (c["message"] for c in conditions if c["type"] == "QuotaReserved" and c["status"] == "False"), ""
            )

        return str(await self.until(told, f"Kueue holds {prefix}"))

    async def finish(self, job: str) -> None:
        """Its pods end well, as a kubelet reports it."""
        for pod in await self.pods(job):
            path = f"/api/v1/namespaces/{self.space}/pods/{pod['metadata']['name']}/status"
            status = {"status": {"phase": "Succeeded"}}
            await self.world.ask("PATCH", path, status, content_type="application/merge-patch+json")


@contextlib.asynccontextmanager
async def queued(
    plane: ControlPlane, made: Kueue, namespace: str, *, nodes: int = 1, gpus: int = 4
) -> AsyncIterator[Queued]:
    async def served() -> bool:
        """Kueue's webhooks answer: it has made its certificate."""
        made.check()
        flavor = documents(EXAMPLES / "queues.yaml")[0]
        status, answer = await asyncio.to_thread(made.create, flavor, query="?dryRun=All")
        assert status in (201, 409) or b"calling webhook" in answer, answer.decode()
        return status in (201, 409)

    await eventually(made.mount, within_s=WITHIN_S, every_s=0.1, what="Kueue's certificate")
    await eventually(served, within_s=WITHIN_S, every_s=0.1, what="Kueue's webhooks")
    async with whole(plane, namespace, nodes=nodes, gpus=gpus, memory_mib=81_920) as world, webhook(plane):
        yield Queued(world, made)


async def test_jobs_are_admitted_in_the_queues_order_and_wait_in_kueue(
    plane: ControlPlane, running_kueue: Kueue
) -> None:
    """Of 2000 milli the first Job takes 1000, in Kerf's words, and one in HAMi's 125. A third one wants 1000 more: it
    waits in Kueue, without pods, though Kerf has free GPUs; it starts when the first has ended."""
    async with queued(plane, running_kueue, "jobs") as site:
        await site.apply("queues.yaml")
        (job,), (theirs,) = documents(EXAMPLES / "job.yaml"), documents(EXAMPLES / "job-hami.yaml")
        await site.create(job)
        await site.create(theirs)
        assert await site.counted("job-train-") == 1000
        for pod in await site.bound("train", 2):
            shares = decode_grant(pod["metadata"]["annotations"]["kerf.dev/grant"]).containers["main"].gpus
            assert [(share.memory_mib, share.compute_milli) for share in shares] == [(40_960, 500)]
        (pod,) = await site.bound("train-hami", 1)
        assert pod["metadata"]["annotations"]["kerf.dev/dialect"] == "hami"
        (share,) = decode_grant(pod["metadata"]["annotations"]["kerf.dev/grant"]).containers["main"].gpus
        assert share.memory_mib == 10_240
        assert await site.counted("job-train-hami-") == 125

        await site.create(job, name="late")
        assert "insufficient unused quota for kerf.dev/quota-gpu-milli" in await site.waits("job-late-")
        assert await site.pods("late") == []
        assert (await site.get(f"/apis/batch/v1/namespaces/{site.space}/jobs/late"))["spec"]["suspend"] is True
        await site.finish("train")
        await site.bound("late", 2)


async def test_a_pod_group_is_admitted_as_a_whole_and_placed_as_a_gang(
    plane: ControlPlane, running_kueue: Kueue
) -> None:
    """Kueue gates the pods until both are there; then Kerf places both in one decision."""
    async with queued(plane, running_kueue, "group") as site:
        await site.apply("queues.yaml")
        first, second = documents(EXAMPLES / "group.yaml")
        made = await site.create(first)
        assert GATE in [gate["name"] for gate in made["spec"]["schedulingGates"]]
        assert made["spec"]["schedulerName"] == "kerf"
        await site.create(second)
        assert await site.counted("group") == 2000
        grants = []
        for name in ("group-0", "group-1"):
            pod = await site.world.bound(name)
            assert not pod["spec"].get("schedulingGates")
            grants.append(decode_grant(pod["metadata"]["annotations"]["kerf.dev/grant"]))
        assert len({share.uuid for grant in grants for share in grant.containers["main"].gpus}) == 2


async def test_kueue_chooses_the_rack_and_kerf_the_gpus(plane: ControlPlane, running_kueue: Kueue) -> None:
    """Topology-aware scheduling: of three nodes two are in one rack, and only there is room for four pods."""
    async with queued(plane, running_kueue, "racks", nodes=3, gpus=2) as site:
        names = [f"{site.space}-{number}" for number in range(3)]
        for name, rack in zip(names, ("a", "b", "b"), strict=True):
            await set_up_node(site, name, rack)
        await site.apply("topology.yaml")
        pods = await site.bound("in-one-rack", 4)
        assert sorted(pod["spec"]["nodeName"] for pod in pods) == [names[1]] * 2 + [names[2]] * 2
        chosen = [pod["spec"]["nodeSelector"]["kubernetes.io/hostname"] for pod in pods]
        assert chosen == [pod["spec"]["nodeName"] for pod in pods], (
            "Kueue's choice is a node selector, which Kerf keeps"
        )


async def set_up_node(site: Queued, name: str, rack: str) -> None:
    """Its rack. What the node offers Kerf has written into its status."""
    labels = {"metadata": {"labels": {"topology.kubernetes.io/rack": rack}}}
    await site.world.ask("PATCH", f"/api/v1/nodes/{name}", labels, content_type="application/merge-patch+json")

    async def advertises() -> bool:
        node = await site.get(f"/api/v1/nodes/{name}")
        return bool(node["status"]["allocatable"].get("kerf.dev/gpu-compute") == "200")

    await site.until(advertises, f"node {name} advertises its GPUs")
