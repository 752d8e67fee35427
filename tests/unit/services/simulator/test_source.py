"""The simulated source: kubectl's part, the webhook's part, ordered StatefulSets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from services.admission.service import Admission
from services.admission.service import Config as AdmissionConfig
from services.simulator.source import SimulatedSource
from services.simulator.webhook import NotAdmitted, Webhook, decide
from services.simulator.workloads import ManifestError
from shared.contracts.facts import Fact, Put
from shared.model.objects import Pod
from shared.service import running
from tests.support.waiting import eventually


class RunningSource:
    """A simulated source, and all facts that it emits."""

    def __init__(self, source: SimulatedSource) -> None:
        self.source = source
        self.facts: list[Fact] = []

    def emit(self, facts: Sequence[Fact]) -> None:
        self.facts.extend(facts)

    def pods(self) -> dict[str, Pod]:
        """The newest state of every pod."""
        return {
            f.object.metadata.name: f.object for f in self.facts if isinstance(f, Put) and isinstance(f.object, Pod)
        }

    async def bind(self, name: str) -> None:
        await self.source.transport.request(
            "POST", f"/api/v1/namespaces/default/pods/{name}/binding", b'{"target":{"name":"n"}}'
        )


@contextlib.asynccontextmanager
async def running_source(**options: Any) -> AsyncIterator[RunningSource]:
    simulated = RunningSource(SimulatedSource(**options))
    task = asyncio.create_task(simulated.source.run(simulated.emit))
    try:
        await simulated.source.wait_synced()
        await simulated.source.apply({"kind": "Node", "metadata": {"name": "n"}})
        yield simulated
    finally:
        task.cancel()
        await asyncio.wait({task})
        await simulated.source.close()


def web(**spec: Any) -> dict[str, Any]:
    template = {
        "metadata": {"labels": {"app": "web"}},
        "spec": {"containers": [{"name": "c", "image": "i", **spec.pop("container", {})}]},
    }
    return {"kind": "StatefulSet", "metadata": {"name": "web"}, "spec": {"replicas": 3, "template": template, **spec}}


async def test_an_ordered_set_makes_each_pod_when_the_one_before_runs() -> None:
    async with running_source() as simulated:
        await simulated.source.apply(web())
        for number in range(3):
            await eventually(lambda n=number: f"web-{n}" in simulated.pods(), what=f"web-{number}")
            assert len(simulated.pods()) == number + 1
            await simulated.bind(f"web-{number}")
        await eventually(
            lambda: all(p.status.phase == "Running" for p in simulated.pods().values()), what="all running"
        )


async def test_a_parallel_set_makes_all_at_once() -> None:
    async with running_source() as simulated:
        await simulated.source.apply(web(podManagementPolicy="Parallel"))
        assert sorted(simulated.pods()) == ["web-0", "web-1", "web-2"]


async def test_a_list_is_expanded_and_namespaces_are_created_automatically() -> None:
    async with running_source() as simulated:
        pod = {"kind": "Pod", "metadata": {"name": "p", "namespace": "new"}, "spec": {"containers": [{"name": "c"}]}}
        await simulated.source.apply({"kind": "List", "items": [pod, {"kind": "Node", "metadata": {"name": "m"}}]})
        assert simulated.pods()["p"].metadata.namespace == "new"
        assert simulated.source.cluster.get("Node", "m") is not None


async def test_applying_twice_changes_and_does_not_double() -> None:
    async with running_source() as simulated:
        node = {"kind": "Node", "metadata": {"name": "n", "labels": {"a": "b"}}}
        await simulated.source.apply(node)
        held = simulated.source.cluster.get("Node", "n")
        assert held is not None
        assert held["metadata"]["labels"] == {"a": "b"}


async def test_deleted_objects_are_removed_and_missing_objects_are_an_error() -> None:
    async with running_source() as simulated:
        simulated.source.delete("Node", "", "n")
        with pytest.raises(ManifestError, match='nodes "n" not found'):
            simulated.source.delete("Node", "", "n")
        with pytest.raises(ManifestError, match="not known"):
            simulated.source.delete("Lamp", "", "n")


async def test_a_workload_is_deleted_with_its_pods_and_with_those_that_it_has_not_made() -> None:
    async with running_source() as simulated:
        source = simulated.source
        await source.apply(web(podManagementPolicy="Parallel") | {"kind": "Deployment"})
        await source.apply({"kind": "Pod", "metadata": {"name": "web-9"}, "spec": {"containers": [{"name": "c"}]}})
        source.delete("Deployment", "", "web")
        assert [pod["metadata"]["name"] for pod in source.cluster.all("Pod")] == ["web-9"]
        with pytest.raises(ManifestError, match='Deployment "web" has no pods in namespace default'):
            source.delete("Deployment", "default", "web")
        await source.apply(web())
        source.delete("StatefulSet", "default", "web")
        await source.apply(web(replicas=1))
        await simulated.bind("web-0")
        await eventually(lambda: simulated.pods()["web-0"].status.phase == "Running", what="web-0 running")
        assert [pod["metadata"]["name"] for pod in source.cluster.all("Pod")] == ["web-9", "web-0"]


async def test_fewer_replicas_delete_the_last_pods() -> None:
    async with running_source() as simulated:
        for replicas, left in ((3, ["web-0", "web-1", "web-2"]), (1, ["web-0"]), (0, [])):
            await simulated.source.apply(web(podManagementPolicy="Parallel", replicas=replicas))
            assert [pod["metadata"]["name"] for pod in simulated.source.cluster.all("Pod")] == left


async def test_pods_pass_the_real_admission_service() -> None:
    """The webhook is called as an API server calls it, and its patch is in the pod that is created."""
    async with running(Admission, AdmissionConfig(host="127.0.0.1", port=0)) as admission:
        port = int(admission.health.report()["parts"]["webhook"]["detail"].removeprefix("port "))
        async with running_source(admission_url=f"http://127.0.0.1:{port}/mutate") as simulated:
            await simulated.source.apply(
                web(podManagementPolicy="Parallel", container={"resources": {"limits": {"kerf.dev/gpu": 1}}})
            )
            pod = simulated.pods()["web-0"]
            assert pod.spec.scheduler_name == "kerf"
            assert str(pod.spec.containers[0].resources.limits["kerf.dev/slot"]) == "1"
            bad = {
                "containers": [{"name": "c", "resources": {"limits": {"kerf.dev/gpu-compute": 70, "kerf.dev/gpu": 3}}}]
            }
            with pytest.raises(NotAdmitted):
                await simulated.source.apply({"kind": "Pod", "metadata": {"name": "bad"}, "spec": bad})
            assert simulated.source.cluster.get("Pod", "bad", "default") is None


async def test_a_webhook_that_is_down_admits_nothing() -> None:
    """As failurePolicy Fail: an unseen GPU request would be worse than none."""
    webhook = Webhook("http://127.0.0.1:1/mutate")
    with pytest.raises(NotAdmitted, match="cannot be reached"):
        await webhook.admit({"metadata": {"name": "p"}})
    await webhook.close()


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [
        (7, "no AdmissionReview"),
        ({"response": {"uid": "other", "allowed": True}}, "no AdmissionReview"),
        ({"response": {"uid": "u", "allowed": False}}, "without explanation"),
        ({"response": {"uid": "u", "allowed": False, "status": {"message": "no"}}}, "no"),
        ({"response": {"uid": "u", "allowed": True, "patch": "e30=", "patchType": "Merge"}}, "Merge"),
        ({"response": {"uid": "u", "allowed": True, "patch": "!", "patchType": "JSONPatch"}}, "cannot be applied"),
        (
            {
                "response": {
                    "uid": "u",
                    "allowed": True,
                    "patch": "W3sib3AiOiJyZW1vdmUiLCJwYXRoIjoiL3gifV0=",
                    "patchType": "JSONPatch",
                }
            },
            "cannot be applied",
        ),
    ],
)
def test_an_answer_that_cannot_be_followed_admits_nothing(answer: Any, wanted: str) -> None:
    with pytest.raises(NotAdmitted, match=wanted):
        decide({"metadata": {}}, "u", answer)
