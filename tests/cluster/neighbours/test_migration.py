"""A cluster with HAMi moves to Kerf node by node, and one node back, by the commands of docs/migrate.md alone.

Real: API server, controllers, kubectl, every part of Kerf but its GPUs. Stand-ins (tests/support/migration): HAMi's
scheduler, webhook and device plugin, and the kubelets. The manifests are those of Project-HAMi/HAMi `examples/nvidia`
(default_use, example, sglang_gpu_sharing, use_memory_fraction, use_exclusive_card), cut to what a scheduler reads.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from cli.stack import Stack, stack
from services.operator.config import Config
from services.operator.service import Operator
from services.simulator.hollow import inventory_of
from shared.kube.client import connect
from shared.kube.sender import Sender
from shared.model.grant import ContainerGrant, GpuShare, Grant, encode_grant
from shared.model.hollow_node import HollowNode
from shared.model.objects import Pod
from shared.service import Lifecycle, load, running
from tests.cluster.test_admission_webhook import webhook
from tests.support import manifests
from tests.support.cluster import binaries_or_skip
from tests.support.migration import hami
from tests.support.migration.guide import Guide
from tests.support.migration.kubelet import HollowKubelets
from tests.support.migration.view import View, check_books, is_ready, taken_of, viewed
from tests.support.waiting import eventually
from tools.control_plane import ControlPlane

pytestmark = pytest.mark.cluster
WITHIN_S = 120.0
GPUS, MEMORY_MIB = 4, 40_960
NODES = {
    name: HollowNode(name=name, model="NVIDIA-A100", count=GPUS, memory_mib=MEMORY_MIB) for name in ("g1", "g2", "g3")
}
UUIDS = {name: [gpu.uuid for gpu in inventory_of(node, "").gpus] for name, node in NODES.items()}
NODE_OF = {uuid: name for name, uuids in UUIDS.items() for uuid in uuids}
NAMESPACES = ("serving", "batch", "research")


def container(**limits: str | int) -> list[dict[str, Any]]:
    named = {f"nvidia.com/{key.replace('_', '-')}": value for key, value in limits.items()}
    return [{"name": "main", "image": "example", "resources": {"limits": named}}]


def workload(kind: str, namespace: str, name: str, count: int, **limits: str | int) -> dict[str, Any]:
    """A Deployment, a StatefulSet or a Job of so many pods."""
    labels = {"app": name}
    pod: dict[str, Any] = {"metadata": {"labels": labels}, "spec": {"containers": container(**limits)}}
    meta = {"name": name, "namespace": namespace}
    if kind == "Job":
        pod["spec"]["restartPolicy"] = "Never"
        ignored = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}  # as the guide advises
        spec = {"parallelism": count, "completions": count, "template": pod, "podFailurePolicy": {"rules": [ignored]}}
        return {"apiVersion": "batch/v1", "kind": kind, "metadata": meta, "spec": spec}
    spec = {"replicas": count, "selector": {"matchLabels": labels}, "template": pod}
    spec |= {"serviceName": name} if kind == "StatefulSet" else {}
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": meta, "spec": spec}


def vector_add() -> dict[str, Any]:
    """HAMi's example.yaml names the default scheduler and tolerates a taint of NVIDIA's."""
    made = workload("Deployment", "serving", "vector-add", 2, gpu=1, gpumem=3000)
    tolerated = [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    made["spec"]["template"]["spec"] |= {"schedulerName": "default-scheduler", "tolerations": tolerated}
    return made


BARE = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "gpu-pod", "namespace": "batch"},
    "spec": {"containers": container(gpu=2, gpumem=3000, gpucores=30)},
}
BUDGET = {
    "apiVersion": "policy/v1",
    "kind": "PodDisruptionBudget",
    "metadata": {"name": "sglang", "namespace": "serving"},
    "spec": {"minAvailable": 2, "selector": {"matchLabels": {"app": "sglang"}}},
}
QUOTA = {
    "apiVersion": "v1",
    "kind": "ResourceQuota",
    "metadata": {"name": "hami", "namespace": "batch"},
    "spec": {"hard": {"limits.nvidia.com/gpumem": "100000", "requests.nvidia.com/gpu": "10"}},
}
WORKLOADS = [
    BUDGET,
    QUOTA,
    workload("Deployment", "serving", "sglang", 3, gpu=1, gpumem=12000, gpucores=30),
    vector_add(),
    workload("StatefulSet", "serving", "notebook", 2, gpumem=5000),
    workload("Job", "batch", "train", 2, gpu=1, gpumem_percentage=50, gpucores=30),
    workload("Deployment", "batch", "exclusive", 1, gpu=1),
    BARE,
    workload("Deployment", "research", "late", 1, gpu=1, gpumem=2000),
]
SHARES: dict[tuple[str, str], tuple[int, int, int, int]] = {
    ("serving", "sglang"): (3, 1, 12000, 300),
    ("serving", "vector-add"): (2, 1, 3000, 0),
    ("serving", "notebook"): (2, 1, 5000, 0),
    ("batch", "train"): (2, 1, 20_480, 300),
    ("batch", "exclusive"): (1, 1, MEMORY_MIB, 1000),
    ("batch", "gpu-pod"): (1, 2, 3000, 300),
    ("research", "late"): (1, 1, 2000, 0),
}
"""By workload: its pods, and of each the GPUs, MiB and thousandths of the compute of each GPU, with Kerf."""


class Site:
    """The cluster, as its administrator sees it."""

    def __init__(self, plane: ControlPlane, view: View, guide: Guide) -> None:
        self.plane, self.view, self.guide = plane, view, guide

    async def until(self, condition: Any, what: str) -> Any:
        def looked() -> Any:
            assert not self.view.failure, self.view.failure
            return condition()

        return await eventually(looked, within_s=WITHIN_S, every_s=0.05, what=what)

    def pods(self, namespace: str, name: str) -> list[Pod]:
        return self.view.named(namespace, name)

    def on(self, node: str, scheduler: str = "") -> dict[str, Pod]:
        """Pods on a node that have not ended, by uid."""
        return {
            uid: pod
            for uid, pod in self.view.pods.items()
            if pod.spec.node_name == node and pod.spec.scheduler_name == (scheduler or pod.spec.scheduler_name)
        }

    def complete(self) -> bool:
        """Every workload has all of its pods, ready."""
        return all(len(pods := self.pods(*key)) == want[0] and all(map(is_ready, pods)) for key, want in SHARES.items())

    def has_shares(self) -> None:
        """All of Kerf's pods have the amounts that they had asked of HAMi for."""
        for key, (_, gpus, mib, milli) in SHARES.items():
            for pod in self.pods(*key):
                if pod.spec.scheduler_name == "kerf" and pod.spec.node_name:
                    taken = taken_of(pod)
                    assert list(taken.values()) == [(mib, milli)] * gpus, (pod.metadata.name, taken)
                    assert {NODE_OF[uuid] for uuid in taken} == {pod.spec.node_name}

    async def move_node(self, node: str) -> None:
        """All steps of a node, as the guide has them; bare pods of it are created anew."""
        run, title = self.guide.run, "A node moves"
        await run(title, 0, NODE=node)
        refused = await run(title, 1, NODE=node)
        bare = [pod for pod in self.on(node).values() if not pod.metadata.owner_references]
        for pod in bare:
            await run(title, 2, NAMESPACE=pod.metadata.namespace, POD=pod.metadata.name)
        assert refused is not None
        await run(title, 3, NODE=node)
        await run(title, 4, NODE=node)
        await run(title, 5, NODE=node)

    async def move_namespace(self, name: str, milli: int) -> None:
        run, title = self.guide.run, "A namespace moves"
        await run(title, 0, NAMESPACE=name, MILLI=str(milli))
        await run(title, 1, NAMESPACE=name)
        await run(title, 2, NAMESPACE=name)
        await run(title, 3, NAMESPACE=name)


@pytest.fixture
def plane() -> Iterator[ControlPlane]:
    binaries = binaries_or_skip("etcd", "kube-apiserver", "kube-controller-manager", "kubectl")
    with tempfile.TemporaryDirectory(prefix="kerf-kube-") as state:
        made = ControlPlane(Path(state), binaries=binaries, controllers=True).start()
        try:
            yield made
        finally:
            made.stop()


@contextlib.asynccontextmanager
async def hami_runs(plane: ControlPlane, tmp_path: Path) -> AsyncIterator[Site]:
    """Three nodes with HAMi, and all of its pods running."""
    for manifest in (*hami.rights(), *hami.webhook()):
        status, answer = manifests.apply(plane, manifest)
        assert status in (200, 201), answer
    guide = Guide(tmp_path, plane.binaries / "kubectl", plane.kubeconfig())
    async with contextlib.AsyncExitStack() as made:
        view = await made.enter_async_context(viewed(plane.kubeconfig()))
        view.checks.append(lambda: check_books(view, NODE_OF, MEMORY_MIB))
        admin = Sender(await connect(str(plane.kubeconfig()), user_agent="test-kubelets")).send
        account = Sender(await connect(str(plane.service_account(*hami.ACCOUNT)), user_agent="hami")).send
        peer, kubelets = hami.Hami(view, account, UUIDS, MEMORY_MIB), HollowKubelets(view, admin)
        site = Site(plane, view, guide)
        actors = await made.enter_async_context(asyncio.TaskGroup())
        tasks = [actors.create_task(view.act(step)) for step in (peer.register, peer.schedule, kubelets.act)]
        made.callback(lambda: [task.cancel() for task in tasks])
        for name in NODES:
            await guide.shell("kubectl create -f -", json.dumps(node_of(name)))
            await guide.shell(f"kubectl taint node {name} node.kubernetes.io/not-ready:NoSchedule-")
        for namespace in NAMESPACES:
            await guide.shell(f"kubectl create namespace {namespace}")
        await guide.shell("kubectl apply -f -", yaml.safe_dump_all(WORKLOADS))
        await site.until(site.complete, "all pods run with HAMi")
        yield site
        assert peer.refused == []
        for task in tasks:
            task.cancel()


def node_of(name: str) -> dict[str, Any]:
    amounts = {"cpu": "64", "memory": "512Gi", "pods": "110"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, "gpu": "on"}},
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


@contextlib.asynccontextmanager
async def agents(view: View, url: str) -> AsyncIterator[None]:
    """What the DaemonSet does: an agent on each node with the label of the operator, and on no other."""
    here: dict[str, contextlib.AsyncExitStack] = {}
    kind = load("node-agent")

    async def step() -> None:
        for name, node in list(view.nodes.items()):
            wanted = node.metadata.labels.get("kerf.dev/enrolled") == "true"
            if wanted and name not in here:
                here[name] = contextlib.AsyncExitStack()
                config = msgspec.convert({"hollow": [msgspec.to_builtins(NODES[name])]}, kind.config_type)
                agent = running(kind, config, lifecycle=Lifecycle(nats_url=url))
                await here[name].enter_async_context(agent)
            elif not wanted and name in here:
                await here.pop(name).aclose()

    async with asyncio.TaskGroup() as group:
        task = group.create_task(view.act(step))
        try:
            yield
        finally:
            task.cancel()
    for agent in here.values():
        await agent.aclose()


@contextlib.asynccontextmanager
async def kerf_installed(site: Site) -> AsyncIterator[Stack]:
    """Instead of `helm install`: the chart's manifests, and its services in this process."""
    plane = site.plane
    manifests.apply_all(plane, "00-", "1", "20-", "21-", "22-", "23-")
    manifests.wait_for_policies(plane)
    account = str(plane.service_account("kerf-system", "kerf-operator"))
    quick = {"lease_s": 2, "check_s": 1, "leaving_s": 0.5}
    config = Config(kubeconfig=account, webhook="", nats_url="", certificates="existing", **quick)
    await site.guide.shell("kubectl create namespace created-later")
    async with (
        webhook(plane, probe="created-later"),
        stack((), kubeconfig=str(plane.service_account("kerf-system", "kerf-watcher"))) as made,
        running(Operator, config),
        agents(site.view, made.url),
    ):
        site.guide.set_nats(made.url)
        yield made
        assert made.failed() == ""


async def test_a_cluster_moves_from_hami_to_kerf_node_by_node_and_no_pod_is_lost(
    plane: ControlPlane, tmp_path: Path
) -> None:
    async with hami_runs(plane, tmp_path) as site:
        await the_guide_is_followed(site)


async def the_guide_is_followed(site: Site) -> None:
    guide, view = site.guide, site.view
    available: list[int] = []

    def budget_holds() -> None:
        ready = [pod for pod in site.pods("serving", "sglang") if is_ready(pod)]
        available.append(len(ready))
        assert len(ready) >= 2, "fewer pods are ready than the PodDisruptionBudget asks for"

    view.checks.append(budget_holds)
    before = {uid: pod.spec.node_name for uid, pod in view.pods.items()}
    await guide.run("Install beside HAMi", 0)
    guide.take("Install beside HAMi", 1, "helm install kerf k8s/chart")
    async with kerf_installed(site):
        await guide.run("Install beside HAMi", 2)
        assert await guide.run("Install beside HAMi", 3, NAMESPACE="serving") == "hami-scheduler"
        assert {uid: pod.spec.node_name for uid, pod in view.pods.items()} == before, "no pod was touched"

        # A label alone moves nothing while HAMi's pods are there.
        await guide.shell("kubectl label node g1 kerf.dev/managed=true")
        about = "involvedObject.name=g1,reason=NotEnrolled"
        events = f"kubectl get events --field-selector {about} --output jsonpath='{{.items[*].message}}'"

        async def told() -> bool:
            return "GPUs of another system on node g1" in await guide.shell(events)

        await eventually(told, within_s=WITHIN_S, every_s=0.2)
        assert view.nodes["g1"].metadata.labels.get("kerf.dev/enrolled") is None
        await guide.shell("kubectl label node g1 kerf.dev/managed-")

        # The first node, while all namespaces are HAMi's.
        await site.move_node("g1")
        await site.until(site.complete, "HAMi has bound the first node's pods elsewhere")
        assert not site.on("g1")

        # Two namespaces; their pods stay where they are.
        stay = {uid: pod.spec.node_name for uid, pod in view.pods.items()}
        await site.move_namespace("serving", 10_000)
        await site.move_namespace("batch", 4000)
        assert {uid: pod.spec.node_name for uid, pod in view.pods.items()} == stay

        # Both at once: new pods go to the one or the other, by their namespace.
        await guide.shell("kubectl -n serving scale deployment vector-add --replicas=3")
        await guide.shell("kubectl -n research scale deployment late --replicas=2")
        await site.until(lambda: "g1" in nodes_of(site, "serving", "vector-add"), "Kerf binds to its node")
        await site.until(lambda: len(nodes_of(site, "research", "late")) == 2, "HAMi goes on")
        assert "g1" not in nodes_of(site, "research", "late")
        await guide.shell("kubectl -n serving scale deployment vector-add --replicas=2")
        await guide.shell("kubectl -n research scale deployment late --replicas=1")

        # HAMi's quota does not count Kerf's pods, and Kerf's own does.
        over = BARE | {"metadata": {"name": "over", "namespace": "batch"}, "spec": {"containers": container(gpu=5)}}
        with pytest.raises(AssertionError, match="exceeded quota: kerf-gpus"):
            await guide.shell("kubectl create --dry-run=server -f -", json.dumps(over))

        # The second node; what is on the third is not touched.
        third = {uid: pod.metadata.annotations for uid, pod in site.on("g3").items()}
        await site.move_node("g2")
        await site.until(site.complete, "all pods run, with both systems")
        assert third.items() <= {uid: pod.metadata.annotations for uid, pod in site.on("g3").items()}.items()
        site.has_shares()

        # One node goes back, with a namespace, and comes again.
        await guide.run("The way back", 0, NAMESPACE="serving")
        await guide.run("The way back", 1, NODE="g2")
        await site.until(site.complete, "all pods run after the way back")
        assert not site.on("g2", "kerf")
        await guide.run("A namespace moves", 1, NAMESPACE="serving")
        await guide.run("A namespace moves", 2, NAMESPACE="serving")
        await site.move_node("g2")

        await site.move_namespace("research", 2000)
        await site.move_node("g3")
        await site.until(site.complete, "all pods run with Kerf")
        site.has_shares()
        left = await guide.run("The end", 0)
        assert left == ""
        await guide.run("The end", 1)
        guide.take("The end", 2, "helm uninstall hami")
        for manifest in reversed(hami.webhook()):
            path = manifests.path_of(manifest)
            status, answer = await asyncio.to_thread(site.plane.request, "DELETE", path)
            assert status == 200, answer
        assert "hami" not in await guide.run("The end", 3)
        for key, (count, *_) in SHARES.items():
            pods = site.pods(*key)
            assert len(pods) == count
            assert {pod.spec.scheduler_name for pod in pods} == {"kerf"}, key
        failed = await guide.shell("kubectl -n batch get job train --output jsonpath='{.status.failed}'")
        assert failed in ("", "0"), "what a drain ends does not count against the Job's backoffLimit"
        # A manifest that still names HAMi's scheduler is Kerf's as well.
        spec = {"schedulerName": "hami-scheduler", "containers": container(gpumem=1000)}
        named = BARE | {"metadata": {"name": "names-hami", "namespace": "serving"}, "spec": spec}
        await guide.shell("kubectl create -f -", json.dumps(named))
        await site.until(lambda: nodes_of(site, "serving", "names-hami"), "Kerf takes it over")
        assert guide.left == set()
        assert min(available) == 2, "the budget was used, and kept"


def nodes_of(site: Site, namespace: str, name: str) -> list[str]:
    return [pod.spec.node_name for pod in site.pods(namespace, name) if pod.spec.node_name]


def held(name: str, **annotations: str) -> Pod:
    meta = {"name": name, "namespace": "team", "uid": name, "annotations": annotations}
    return msgspec.convert({"kind": "Pod", "metadata": meta, "spec": {"nodeName": "g1"}}, Pod)


def test_the_count_finds_a_gpu_that_both_systems_have_given() -> None:
    """Of what the migration's count is made of: HAMi's annotation and Kerf's, on one GPU."""
    view, (uuid, *_) = View(), UUIDS["g1"]
    theirs = {"hami.io/vgpu-devices-allocated": f"{uuid},NVIDIA,30000,0:;"}
    share = GpuShare(node="g1", uuid=uuid, memory_mib=20_000, compute_milli=100)
    grant = Grant(grant_id="1", term=1, containers={"main": ContainerGrant(strategy="advisory", gpus=(share,))})
    view.pods = {"a": held("a", **theirs)}
    check_books(view, NODE_OF, MEMORY_MIB)
    view.pods["b"] = held("b", **{"kerf.dev/grant": encode_grant(grant)})
    with pytest.raises(AssertionError, match=r"50000 of 40960 MiB, by \['team/a', 'team/b'\]"):
        check_books(view, NODE_OF, MEMORY_MIB)
