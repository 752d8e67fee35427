"""Orders carried out in the simulated cluster; Events and conditions after them, and shed before them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import structlog

from services.simulator.cluster import SimulatedCluster
from services.simulator.transport import SimTransport
from services.watcher import announcer as announcing
from services.watcher.announcer import Announcer, stands
from services.watcher.config import WRITES_IN_FLIGHT
from services.watcher.core import Core
from services.watcher.executors.batches import Batches
from services.watcher.executors.bindings import Bindings
from services.watcher.executors.patches import Patches
from services.watcher.executors.raised_amounts import SEEN_AFTER_S, RaisedAmounts
from shared.contracts import commands as c
from shared.contracts.base import encode
from shared.kube.outcomes import Result
from shared.kube.transport import JSON, Response
from shared.kube.writes import Writes
from shared.model import names
from shared.model.kube_object import ANNOTATIONS_MAX_BYTES, Meta
from shared.model.objects import Condition, Gang, GroupCondition, Pod, PodStatus
from shared.telemetry import Metrics, Telemetry
from tests.support import build
from tests.support.waiting import eventually


class Gate:
    """A transport that lets requests through on a signal, and counts those that wait."""

    def __init__(self, inner: SimTransport) -> None:
        self._inner = inner
        self.answers: list[Response] = []
        """For the next requests, which then do not reach the cluster."""
        self.open = asyncio.Event()
        self.open.set()
        self.inside = self.max_inside = self.requests = 0

    async def request(
        self, method: str, path: str, body: bytes = b"", *, content_type: str = JSON, timeout_s: float = 10.0
    ) -> Response:
        self.requests += 1
        self.inside += 1
        self.max_inside = max(self.max_inside, self.inside)
        await self.open.wait()
        self.inside -= 1
        if self.answers:
            return self.answers.pop(0)
        return await self._inner.request(method, path, body, content_type=content_type, timeout_s=timeout_s)

    def stream(self, path: str, *, read_timeout_s: float) -> Any:
        return self._inner.stream(path, read_timeout_s=read_timeout_s)

    async def close(self) -> None:
        await self._inner.close()


class ExecutorHarness:
    """Executors that write to a simulated cluster through a gate."""

    def __init__(self, *, binds_in_flight: int = 32) -> None:
        self.cluster = SimulatedCluster()
        self.core = Core("e")
        self.gate = Gate(SimTransport(self.cluster, time.time, self.follow))
        writes = Writes(self.gate, reporter="test")
        self.announcer = Announcer(
            writes,
            lambda ns, name: self.core.find("Pod", name, ns),
            lambda: self.batches.binding > 0,
            structlog.get_logger(),
        )
        self.telemetry = Telemetry("watcher", ratio=1.0, otlp_endpoint="")
        metrics = Metrics()
        self.batches = Batches(metrics, binds_in_flight=binds_in_flight)
        self.bindings = Bindings(
            self.core, writes, self.announcer, self.batches, telemetry=self.telemetry, metrics=metrics
        )
        self.patches = Patches(self.core, writes, self.announcer, self.batches)
        self.cluster.create("Node", {"metadata": {"name": "n"}}, 0.0)

    def follow(self) -> None:
        self.core.facts(self.cluster.take(), 0.0)

    def pod(self, name: str = "p", **meta: Any) -> Pod:
        spec = {"schedulerName": "kerf", "containers": [{"name": "c"}]}
        self.cluster.create("Pod", {"metadata": {"name": name, **meta}, "spec": spec}, 0.0)
        return self.now(name)

    def now(self, name: str = "p") -> Pod:
        self.follow()
        found = self.core.find("Pod", name, "default")
        assert isinstance(found, Pod)
        return found

    def create(self, kind: str, name: str, spec: Any) -> None:
        assert self.cluster.create(kind, {"metadata": {"name": name}, "spec": spec}, 0.0)[0] == 201
        self.follow()

    def bind(self, pod: Pod, node: str = "n") -> c.Bind:
        meta = pod.metadata
        return c.Bind(
            uid=meta.uid, namespace=meta.namespace, name=meta.name, resource_version=meta.resource_version, node=node
        )

    async def patch(self, *patches: c.Patch) -> list[tuple[str, str]]:
        return [(a.uid, a.outcome) for a in (await self.patches.patch(c.PatchBatch(patches=patches))).answers]

    def events(self) -> list[str]:
        return [e["reason"] for e in self.cluster.all("Event")]


@contextlib.asynccontextmanager
async def announcing_by(harness: ExecutorHarness) -> AsyncIterator[None]:
    """The announcer works within the block."""
    running = asyncio.create_task(harness.announcer.run())
    try:
        yield
    finally:
        running.cancel()
        await asyncio.wait({running})


def identity(pod: Pod) -> dict[str, Any]:
    return {"uid": pod.metadata.uid, "namespace": pod.metadata.namespace, "name": pod.metadata.name}


async def test_a_pod_that_this_watcher_has_not_seen_yet_is_not_bound() -> None:
    """Placement may follow another watcher. What the node has to be raised by would be missing, and so would the
    annotations that go with the Binding."""
    harness = ExecutorHarness()
    order = msgspec.structs.replace(harness.bind(harness.pod("p")), name="q", uid="uid-of-q")
    before = harness.gate.requests
    (answer,) = (await harness.bindings.bind(c.BindBatch(term=1, sequence=1, binds=(order,)))).answers
    assert (answer.outcome, harness.gate.requests) == ("throttled", before)
    assert "not known to this watcher yet" in answer.message


async def test_an_event_that_the_server_has_no_time_for_is_written_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(announcing, "THROTTLED_S", 0.01)
    harness = ExecutorHarness()
    pods = [harness.pod("p"), harness.pod("q")]
    harness.gate.answers = [Response(429, b'{"message":"later"}')] * 3
    async with announcing_by(harness):
        for one in pods:
            harness.announcer.tell(touch(one), "Evicted", "Evicting", "because")
        await eventually(lambda: harness.announcer.written == 2)
    assert (harness.events(), harness.gate.requests) == (["Evicted", "Evicted"], 5)


async def test_an_order_that_is_repeated_while_it_is_under_way_is_sent_once() -> None:
    """In another batch, as the placement service repeats it when the API server is slow."""
    harness = ExecutorHarness(binds_in_flight=1)
    first, second = harness.bind(harness.pod("p")), harness.bind(harness.pod("q"))
    harness.gate.open.clear()
    tasks = [
        asyncio.create_task(harness.bindings.bind(c.BindBatch(term=1, sequence=i, binds=binds)))
        for i, binds in enumerate([(first, second), (second, first), (first,)])
    ]
    await eventually(lambda: harness.gate.inside == 1, what="the first in flight")
    harness.gate.open.set()
    assert [await task for task in tasks] == [c.Answers()] * 3
    assert harness.gate.requests == 2
    await harness.announcer.flush()
    assert harness.events() == ["Scheduled", "Scheduled"]


async def test_an_order_under_way_goes_on_when_one_of_those_who_wait_for_it_does_not() -> None:
    harness = ExecutorHarness()
    order = harness.bind(harness.pod())
    harness.gate.open.clear()
    first, second = (
        asyncio.create_task(harness.bindings.bind(c.BindBatch(term=1, sequence=i, binds=(order,)))) for i in range(2)
    )
    await eventually(lambda: harness.gate.inside == 1, what="it in flight")
    first.cancel()
    await asyncio.wait({first})
    harness.gate.open.set()
    assert await second == c.Answers()
    assert (first.cancelled(), harness.gate.requests, harness.batches.binding) == (True, 1, 0)


async def test_nothing_is_under_way_any_more_when_the_batches_are_closed() -> None:
    harness = ExecutorHarness(binds_in_flight=1)
    orders = [harness.bind(harness.pod(name)) for name in ("p", "q")]
    harness.gate.open.clear()
    task = asyncio.create_task(harness.bindings.bind(c.BindBatch(term=1, sequence=1, binds=tuple(orders))))
    await eventually(lambda: harness.gate.inside == 1, what="one in flight, and one that waits")
    task.cancel()
    await asyncio.wait({task})
    assert harness.batches.binding == 2
    await harness.batches.close()
    assert (harness.batches.binding, harness.gate.requests) == (0, 1)


async def test_the_repetition_of_an_order_that_failed_is_sent() -> None:
    harness = ExecutorHarness()
    order = harness.bind(harness.pod())
    harness.gate.answers.append(Response(503, b"{}"))
    batch = c.BindBatch(term=1, sequence=1, binds=(order,))
    assert [answer.outcome for answer in (await harness.bindings.bind(batch)).answers] == ["unknown"]
    assert await harness.bindings.bind(batch) == c.Answers()
    assert harness.now().spec.node_name == "n"


async def test_a_pod_that_is_bound_already_is_not_sent_to_the_server() -> None:
    harness = ExecutorHarness()
    order = harness.bind(harness.pod())
    batch = c.BindBatch(term=1, sequence=1, binds=(order,))
    assert await harness.bindings.bind(batch) == c.Answers()
    harness.follow()
    assert [answer.outcome for answer in (await harness.bindings.bind(batch)).answers] == ["conflict"]
    assert harness.gate.requests == 1


async def test_no_more_binds_are_in_flight_than_allowed() -> None:
    """All batches share the limit, or the API server's queues would."""
    harness = ExecutorHarness(binds_in_flight=4)
    orders = [harness.bind(harness.pod(f"p{i}")) for i in range(20)]
    harness.gate.open.clear()
    tasks = [
        asyncio.create_task(harness.bindings.bind(c.BindBatch(term=1, sequence=i, binds=tuple(orders[i::2]))))
        for i in range(2)
    ]
    await eventually(lambda: harness.gate.inside == 4, what="four of them")
    assert harness.batches.binding == 20
    harness.gate.open.set()
    assert [await task for task in tasks] == [c.Answers(), c.Answers()]
    assert harness.gate.max_inside == 4
    assert harness.batches.binding == 0
    assert harness.core.log_sequence_seen == 1


async def test_a_binding_does_not_wait_for_patches_that_hang() -> None:
    """As by an admission webhook for pods that does not answer: each of them takes 10 s."""
    harness = ExecutorHarness()
    pod, others = harness.pod(), [harness.pod(f"p{i}") for i in range(2 * WRITES_IN_FLIGHT)]
    harness.gate.open.clear()
    touched = asyncio.create_task(harness.patch(*map(touch, others)))
    await eventually(lambda: harness.gate.inside == WRITES_IN_FLIGHT, what="as many patches as may be in flight")
    bound = asyncio.create_task(harness.bindings.bind(c.BindBatch(term=1, sequence=1, binds=(harness.bind(pod),))))
    await eventually(lambda: harness.gate.inside == WRITES_IN_FLIGHT + 1, what="the Binding in flight", within_s=2)
    harness.gate.open.set()
    assert (await bound, await touched) == (c.Answers(), [])


async def test_an_unknown_node_is_never_bound_to() -> None:
    harness = ExecutorHarness()
    pod = harness.pod()
    answers = await harness.bindings.bind(c.BindBatch(term=1, sequence=1, binds=(harness.bind(pod, "nowhere"),)))
    assert [(a.outcome, a.resource_version) for a in answers.answers] == [("no-node", pod.metadata.resource_version)]
    assert harness.core.find("Pod", "p", "default").spec.node_name == ""


async def test_a_node_that_this_watcher_has_not_seen_yet_is_asked_for() -> None:
    """Placement may follow another watcher. An answer for certain would pause the pod, and warn of a refusal."""
    harness = ExecutorHarness()
    pod = harness.pod()
    harness.cluster.create("Node", {"metadata": {"name": "new"}}, 0.0)
    batch = c.BindBatch(term=1, sequence=1, binds=(harness.bind(pod, "new"),))
    harness.gate.answers = [Response(503, b"{}")]
    for _ in range(2):
        assert [a.outcome for a in (await harness.bindings.bind(batch)).answers] == ["throttled"]
    assert harness.now().spec.node_name == ""
    assert await harness.bindings.bind(batch) == c.Answers()


@pytest.mark.parametrize(
    "change", [{"uid": "another"}, {"resource_version": "1"}], ids=["another pod of that name", "an older version"]
)  # fmt: skip
async def test_a_pod_that_is_not_the_one_that_was_decided_is_not_bound(change: dict[str, str]) -> None:
    """R3. A pod decided at another version is decided again, and a late Binding must not succeed beside that."""
    harness = ExecutorHarness()
    order = msgspec.structs.replace(harness.bind(harness.pod()), **change)
    answers = (await harness.bindings.bind(c.BindBatch(term=1, sequence=1, binds=(order,)))).answers
    assert [answer.outcome in ("conflict", "gone") for answer in answers] == [True]
    assert harness.now().spec.node_name == ""


async def test_a_bind_has_its_span_in_the_pods_trace() -> None:
    harness = ExecutorHarness()
    pod = harness.pod()
    await harness.bindings.bind(c.BindBatch(term=1, sequence=1, binds=(harness.bind(pod),)))
    spans = harness.telemetry.take()
    assert [(s.name, s.attributes["k8s.node.name"], s.attributes["kerf.outcome"]) for s in spans] == [
        ("bind", "n", "done")
    ]
    assert spans[0].trace_id in harness.telemetry.traceparent(pod.metadata.uid)


async def test_labels_that_are_set_are_not_written_again() -> None:
    harness = ExecutorHarness()
    harness.follow()
    order = c.LabelNode(node="n", labels={"nvidia.com/gpu.product": "X", "old": None})
    assert await harness.patch(order) == []
    before = harness.cluster.version
    assert await harness.patch(order) == []
    assert harness.cluster.version == before
    assert await harness.patch(c.LabelNode(node="nowhere", labels={"a": "b"})) == [("nowhere", "gone")]


async def test_a_node_advertises_what_it_has_and_once() -> None:
    harness = ExecutorHarness()
    harness.follow()
    order = c.AdvertiseCapacity(node="n", amounts={"kerf.dev/gpu-compute": 800})
    assert await harness.patch(order) == []
    harness.follow()
    status = harness.core.find("Node", "n").status
    assert (status.capacity, status.allocatable) == ({"kerf.dev/gpu-compute": "800"},) * 2
    before = harness.cluster.version
    assert await harness.patch(order) == []
    assert harness.cluster.version == before
    nowhere = c.AdvertiseCapacity(node="nowhere", amounts={"kerf.dev/gpu-compute": 800})
    assert await harness.patch(nowhere) == [("nowhere", "gone")]


async def test_a_taint_is_added_and_taken_away_beside_others() -> None:
    harness = ExecutorHarness()
    other = {"key": "kerf.dev/managed", "effect": "NoSchedule", "timeAdded": "2026-11-01T00:00:00Z"}
    harness.cluster.patch("Node", "", "n", {"spec": {"taints": [other]}})
    for present in (True, True, False):
        harness.follow()
        assert await harness.patch(c.TaintNode(node="n", key="k", present=present)) == []
        held = harness.cluster.get("Node", "n")["spec"]["taints"]
        assert held == [other, *([{"key": "k", "effect": "NoSchedule"}] if present else [])]


async def test_a_pod_is_nominated_for_a_node_and_no_longer() -> None:
    harness = ExecutorHarness()
    for node in ("n", ""):
        pod = harness.pod() if node else harness.now()
        order = c.NominateNode(**identity(pod), node=node, resource_version=pod.metadata.resource_version)
        assert await harness.patch(order) == []
        assert harness.now().status.nominated_node_name == node


async def test_a_binding_tells_karpenter_of_the_minimum_run_time() -> None:
    harness = ExecutorHarness()
    pod = harness.pod(annotations={"kerf.dev/min-runtime": "90m"})
    await harness.bindings.bind(c.BindBatch(term=1, sequence=1, binds=(harness.bind(pod),)))
    assert harness.now().metadata.annotations["karpenter.sh/do-not-disrupt"] == "5400s"


async def test_a_binding_that_the_kubelet_would_refuse_raises_what_the_node_advertises_first() -> None:
    """The kubelet adds up requests; placement counts by GPU, and a paused pod requests what another one uses."""
    harness = ExecutorHarness()
    amounts = {"kerf.dev/gpu-compute": "100"}
    harness.cluster.patch("Node", "", "n", {"status": {"capacity": amounts, "allocatable": amounts}})
    pods = []
    for name in ("a", "b", "c"):
        limits = {"kerf.dev/gpu-compute": "50"}
        spec = {"schedulerName": "kerf", "containers": [{"name": "c", "resources": {"limits": limits}}]}
        harness.cluster.create("Pod", {"metadata": {"name": name}, "spec": spec}, 0.0)
        pods.append(harness.now(name))
    advertised = []
    for pod in pods:
        answers = await harness.bindings.bind(c.BindBatch(term=1, sequence=1, binds=(harness.bind(pod),)))
        assert answers == c.Answers()
        harness.follow()
        advertised.append(harness.core.find("Node", "n").status.allocatable["kerf.dev/gpu-compute"])
    assert advertised == ["100", "100", "188"]


async def test_no_pod_is_bound_to_a_node_before_its_kubelet_can_have_seen_the_raised_amounts() -> None:
    """The kubelet's watch of its node may be behind that of its pods; it would refuse the pod for ever."""
    harness, waits = ExecutorHarness(), list[float]()
    amounts = {"kerf.dev/gpu-compute": "40"}
    harness.cluster.patch("Node", "", "n", {"status": {"capacity": amounts, "allocatable": amounts}})
    harness.follow()

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    raised = RaisedAmounts(harness.core, Writes(harness.gate, reporter="test"), sleep=sleep)
    orders = []
    for name in ("a", "b", "c"):
        limits = {"kerf.dev/gpu-compute": "40"}
        spec = {"schedulerName": "kerf", "containers": [{"name": "c", "resources": {"limits": limits}}]}
        harness.cluster.create("Pod", {"metadata": {"name": name}, "spec": spec}, 0.0)
        orders.append(harness.bind(harness.now(name)))
    assert (await raised.count(orders[0]), waits) == (Result("done"), [])  # it fits
    assert await raised.count(orders[1]) == Result("done")
    assert [0 < seconds <= SEEN_AFTER_S for seconds in waits] == [True]
    assert harness.core.find("Node", "n").status.allocatable["kerf.dev/gpu-compute"] == "100"
    raised.uncount(orders[0])
    assert await raised.count(orders[2]) == Result("done")  # it fits by the raised amounts, which are new
    assert len(waits) == 2


async def test_a_binding_is_tried_again_where_this_watcher_has_not_seen_the_raised_amounts_itself() -> None:
    harness = ExecutorHarness()
    amounts = {"kerf.dev/gpu-compute": "40"}
    harness.cluster.patch("Node", "", "n", {"status": {"capacity": amounts, "allocatable": amounts}})
    harness.follow()
    limits = {"kerf.dev/gpu-compute": "50"}
    spec = {"schedulerName": "kerf", "containers": [{"name": "c", "resources": {"limits": limits}}]}
    harness.cluster.create("Pod", {"metadata": {"name": "p"}, "spec": spec}, 0.0)
    order = harness.bind(harness.now())

    async def sleep(_: float) -> None:
        """The watch does not go on."""

    raised = RaisedAmounts(harness.core, Writes(harness.gate, reporter="test"), sleep=sleep)
    harness.gate.answers.append(Response(200, b"{}"))  # accepted, and not in this watcher's watch yet
    result = await raised.count(order)
    assert (result.outcome, "have not been seen" in result.message) == ("throttled", True)


async def test_a_pod_is_not_bound_where_what_the_node_advertises_cannot_be_raised() -> None:
    harness = ExecutorHarness()
    harness.cluster.patch("Node", "", "n", {"status": {"allocatable": {"kerf.dev/gpu-compute": "10"}}})
    limits = {"kerf.dev/gpu-compute": "50"}
    spec = {"schedulerName": "kerf", "containers": [{"name": "c", "resources": {"limits": limits}}]}
    harness.cluster.create("Pod", {"metadata": {"name": "p"}, "spec": spec}, 0.0)
    order = harness.bind(harness.now())
    harness.gate.answers.append(Response(403, b'{"message": "nodes/status is forbidden"}'))
    answers = (await harness.bindings.bind(c.BindBatch(term=1, sequence=1, binds=(order,)))).answers
    assert [(a.outcome, "is forbidden" in a.message) for a in answers] == [("refused", True)]
    assert harness.now().spec.node_name == ""


async def test_a_binding_that_is_sent_again_still_counts_on_its_node() -> None:
    """Orders are repeated (R5, two watchers): the second is answered by 409, and the pod runs there all the same."""
    harness = ExecutorHarness()
    amounts = {"kerf.dev/gpu-compute": "100"}
    harness.cluster.patch("Node", "", "n", {"status": {"capacity": amounts, "allocatable": amounts}})
    orders = []
    for name in ("a", "b"):
        limits = {"kerf.dev/gpu-compute": "100"}
        spec = {"schedulerName": "kerf", "containers": [{"name": "c", "resources": {"limits": limits}}]}
        harness.cluster.create("Pod", {"metadata": {"name": name}, "spec": spec}, 0.0)
        orders.append(harness.bind(harness.now(name)))
    outcomes = []
    for order in (orders[0], orders[0], orders[1]):
        answers = await harness.bindings.bind(c.BindBatch(term=1, sequence=1, binds=(order,)))
        outcomes.append([answer.outcome for answer in answers.answers])
        harness.follow()
    assert outcomes == [[], ["conflict"], []]
    assert harness.core.find("Node", "n").status.allocatable["kerf.dev/gpu-compute"] == "250"


async def test_two_bindings_to_a_node_raise_it_one_after_the_other() -> None:
    """Side by side the smaller amount could arrive last, and the kubelet would refuse a pod."""
    harness = ExecutorHarness()
    amounts = {"kerf.dev/gpu-compute": "50"}
    harness.cluster.patch("Node", "", "n", {"status": {"capacity": amounts, "allocatable": amounts}})
    orders = []
    for name in ("a", "b"):
        limits = {"kerf.dev/gpu-compute": "100"}
        spec = {"schedulerName": "kerf", "containers": [{"name": "c", "resources": {"limits": limits}}]}
        harness.cluster.create("Pod", {"metadata": {"name": name}, "spec": spec}, 0.0)
        orders.append(harness.bind(harness.now(name)))
    harness.gate.open.clear()
    task = asyncio.create_task(harness.bindings.bind(c.BindBatch(term=1, sequence=1, binds=tuple(orders))))
    await eventually(lambda: harness.gate.inside > 0, what="the first write")
    await asyncio.gather(*(asyncio.sleep(0) for _ in range(10)))
    assert harness.gate.inside == 1
    harness.gate.open.set()
    assert await task == c.Answers()
    harness.follow()
    assert harness.core.find("Node", "n").status.allocatable["kerf.dev/gpu-compute"] == "250"


def pod_group(condition: GroupCondition | None = None) -> Gang:
    meta = Meta(
        name="podgroup.scheduling.k8s.io/train", namespace="team", uid="uid-g", resource_version=build.next_version()
    )
    return Gang(metadata=meta, minimum=2, scheduled=condition, generation=3)


def report(**fields: Any) -> c.ReportPodGroup:
    given = {"uid": "uid-g", "namespace": "team", "name": "train", "scheduled": False, "reason": "Unschedulable"}
    return c.ReportPodGroup(**{**given, "message": "no room", **fields})


@pytest.mark.parametrize(
    ("known", "order"),
    [
        (GroupCondition(status="False", reason="Unschedulable", message="no room"), report()),
        (GroupCondition(status="True", reason="Scheduled"), report()),
        (GroupCondition(status="True", reason="Scheduled"), report(scheduled=True, reason="Scheduled")),
    ],
    ids=["it says so already", "it was scheduled once", "it was scheduled, in other words"],
)
async def test_a_pod_groups_condition_is_not_written_again(known: GroupCondition, order: c.ReportPodGroup) -> None:
    harness = ExecutorHarness()
    harness.core.facts(build.put(pod_group(known)), 0.0)
    harness.gate.answers = [Response(500, b"{}")]
    assert await harness.patch(order) == []
    assert len(harness.gate.answers) == 1, "nothing was requested"


async def test_the_condition_of_another_pod_group_of_that_name_is_not_written() -> None:
    harness = ExecutorHarness()
    harness.core.facts(build.put(pod_group()), 0.0)
    assert await harness.patch(report(uid="uid-old")) == [("uid-old", "gone")]


async def test_a_pod_group_of_a_server_without_pod_groups_is_gone() -> None:
    """The kind went with its feature gate between the watcher's last list and the write."""
    harness = ExecutorHarness()
    harness.core.facts(build.put(pod_group()), 0.0)
    assert await harness.patch(report()) == [("uid-g", "gone")]


async def test_a_pod_that_cannot_live_is_deleted_with_a_reason() -> None:
    harness = ExecutorHarness()
    pod = harness.pod()
    assert await harness.patch(c.DeletePod(**identity(pod), reason="its node does not exist")) == []
    assert harness.core.find("Pod", "p", "default") is None
    await harness.announcer.flush()
    assert [(e["reason"], e["note"]) for e in harness.cluster.all("Event")] == [("Deleted", "its node does not exist")]


async def test_a_pod_that_has_changed_since_is_not_deleted() -> None:
    harness = ExecutorHarness()
    order = c.DeletePod(**identity(harness.pod()), reason="r", resource_version="1")
    assert await harness.patch(order) == [(order.uid, "conflict")]
    assert harness.now().metadata.deletion_timestamp is None


# --- touching -----------------------------------------------------------------------------------------------------


def touch(pod: Pod) -> c.TouchPod:
    return c.TouchPod(**identity(pod), token=f"7-{pod.metadata.resource_version}")


def touched(pod: Pod) -> list[str]:
    return [condition.message for condition in pod.status.conditions if condition.type == names.ANNOTATION_TOUCHED]


async def test_a_touch_is_an_annotation_that_moves_the_pods_version() -> None:
    harness = ExecutorHarness()
    pod = harness.pod()
    assert await harness.patch(touch(pod)) == []
    after = harness.now()
    assert after.metadata.annotations[names.ANNOTATION_TOUCHED] == touch(pod).token
    assert (after.metadata.resource_version != pod.metadata.resource_version, touched(after)) == (True, [])


async def test_a_pod_that_takes_no_annotation_is_touched_by_its_status() -> None:
    """Its annotations are as large as they may be. Any write moves its version."""
    harness = ExecutorHarness()
    pod = harness.pod(annotations={"big": "x" * (ANNOTATIONS_MAX_BYTES - 3)})
    assert await harness.patch(touch(pod)) == []
    after = harness.now()
    assert after.metadata.resource_version != pod.metadata.resource_version
    assert (touched(after), names.ANNOTATION_TOUCHED in after.metadata.annotations) == ([touch(pod).token], False)


async def test_a_pod_is_touched_by_its_status_if_its_webhook_does_not_answer() -> None:
    """The server reports the webhook's failure as its own."""
    harness = ExecutorHarness()
    pod = harness.pod()
    failed = b'{"message":"Internal error occurred: failed calling webhook \\"w.example\\": no route"}'
    harness.gate.answers = [Response(500, failed)]
    assert await harness.patch(touch(pod)) == []
    assert touched(harness.now()) == [touch(pod).token]


@pytest.mark.parametrize(
    ("annotating", "outcome"),
    [(b"failed calling webhook", "refused"), (b"etcdserver: request timed out", "unknown")],
)
async def test_a_touch_fails_for_certain_only_if_neither_way_can_succeed(annotating: bytes, outcome: str) -> None:
    """A certain refusal counts towards the pod's exclusion: a failing webhook does, a server failure does not."""
    harness = ExecutorHarness()
    pod = harness.pod()
    harness.gate.answers = [Response(500, b'{"message":"%s"}' % annotating), Response(403, b'{"message":"no"}')]
    assert await harness.patch(touch(pod)) == [(pod.metadata.uid, outcome)]


@pytest.mark.parametrize(
    ("status", "outcome"), [(429, "throttled"), (409, "conflict"), (404, "gone")]
)  # fmt: skip
async def test_a_temporarily_refused_touch_is_not_tried_in_another_way(status: int, outcome: str) -> None:
    """It is requested again."""
    harness = ExecutorHarness()
    pod = harness.pod()
    harness.gate.answers = [Response(status, b'{"message":"because"}')]
    assert await harness.patch(touch(pod)) == [(pod.metadata.uid, outcome)]
    assert touched(harness.now()) == []


async def test_a_pod_is_touched_by_its_status_if_its_webhook_hangs() -> None:
    """The watcher's own time-out ends before the webhook's: it is unknown what became of the annotation, and a second
    touch does no harm."""
    harness = ExecutorHarness()
    pod = harness.pod()
    harness.gate.answers = [Response(504, b"{}")]
    assert await harness.patch(touch(pod)) == []
    assert touched(harness.now()) == [touch(pod).token]


async def test_a_touch_by_status_does_not_change_the_annotation() -> None:
    """A webhook may take the annotation away again, and then the pod does not move."""
    harness = ExecutorHarness()
    pod = harness.pod()
    assert await harness.patch(msgspec.structs.replace(touch(pod), by_status=True)) == []
    after = harness.now()
    assert (touched(after), names.ANNOTATION_TOUCHED in after.metadata.annotations) == ([touch(pod).token], False)


async def test_the_answers_to_a_full_batch_fit_into_one_message() -> None:
    harness = ExecutorHarness()
    pods = [harness.pod(f"p{i}") for i in range(256)]
    harness.gate.answers = [Response(422, b'{"message":"' + b"x" * 5000 + b'"}')] * 512
    answers = await harness.patches.patch(c.PatchBatch(patches=tuple(touch(pod) for pod in pods)))
    assert len(answers.answers) == 256
    assert len(encode(answers)) < 1_000_000


async def test_a_pod_that_cannot_be_touched_in_either_way_is_refused_with_both_reasons() -> None:
    """By which placement excludes it."""
    harness = ExecutorHarness()
    pod = harness.pod()
    harness.gate.answers = [Response(422, b'{"message":"Too long"}'), Response(403, b'{"message":"forbidden"}')]
    answers = (await harness.patches.patch(c.PatchBatch(patches=(touch(pod),)))).answers
    assert [(answer.uid, answer.outcome) for answer in answers] == [(pod.metadata.uid, "refused")]
    assert answers[0].message == "its annotations: Too long; its status: forbidden"


async def test_a_status_that_cannot_be_written_just_now_does_not_refuse_the_touch() -> None:
    """No pod is excluded for a temporary failure."""
    harness = ExecutorHarness()
    pod = harness.pod()
    harness.gate.answers = [Response(422, b'{"message":"Too long"}'), Response(503, b"{}")]
    assert await harness.patch(touch(pod)) == [(pod.metadata.uid, "unknown")]


# --- orders for one version ---------------------------------------------------------------------------------------


async def test_an_order_to_suspend_is_for_one_version_of_the_pod() -> None:
    """What was decided before another leader took over must not succeed later."""
    harness = ExecutorHarness()
    pod = harness.pod()
    late = c.SuspendPod(
        **identity(pod), suspension="pause plan", reason="r", resource_version=pod.metadata.resource_version
    )
    assert await harness.patch(touch(pod)) == []
    assert await harness.patch(late) == [(pod.metadata.uid, "conflict")]
    assert names.ANNOTATION_SUSPENDED not in harness.now().metadata.annotations
    present = msgspec.structs.replace(late, resource_version=harness.now().metadata.resource_version)
    assert await harness.patch(present) == []
    assert harness.now().metadata.annotations[names.ANNOTATION_SUSPENDED] == "pause plan"


async def test_the_gpu_time_is_written_in_the_patch_of_the_suspension_or_not_at_all() -> None:
    harness = ExecutorHarness()
    pod = harness.pod()
    order = c.SuspendPod(
        **identity(pod),
        suspension="pause plan",
        reason="r",
        resource_version=pod.metadata.resource_version,
        gpu_time='{"since":1.0}',
    )
    assert await harness.patch(order) == []
    notes = harness.now().metadata.annotations
    assert (notes[names.ANNOTATION_SUSPENDED], notes[names.ANNOTATION_GPU_TIME]) == ("pause plan", '{"since":1.0}')
    assert int(harness.now().metadata.resource_version) == int(pod.metadata.resource_version) + 1, "one write"
    late = msgspec.structs.replace(order, suspension="", gpu_time='{"since":2.0}')
    assert await harness.patch(late) == [(pod.metadata.uid, "conflict")]
    resumes = msgspec.structs.replace(late, resource_version=harness.now().metadata.resource_version, gpu_time="")
    assert await harness.patch(resumes) == []
    assert harness.now().metadata.annotations[names.ANNOTATION_GPU_TIME] == '{"since":1.0}', "it stays"


async def test_a_pod_that_resumes_on_other_gpus_gets_its_grant_in_the_patch_that_ends_the_suspension() -> None:
    harness = ExecutorHarness()
    pod = harness.pod(annotations={names.ANNOTATION_SUSPENDED: "plan", names.ANNOTATION_GRANT: "on the first"})
    version = pod.metadata.resource_version
    order = c.SuspendPod(**identity(pod), suspension="", reason="r", resource_version=version, grant="on the second")
    assert await harness.patch(order) == []
    notes = harness.now().metadata.annotations
    assert (notes.get(names.ANNOTATION_SUSPENDED), notes[names.ANNOTATION_GRANT]) == (None, "on the second")
    assert int(harness.now().metadata.resource_version) == int(version) + 1, "one write"
    assert await harness.patch(msgspec.structs.replace(order, grant="on the third")) == []
    assert harness.now().metadata.annotations[names.ANNOTATION_GRANT] == "on the second", "it was for that version"


async def test_a_suspension_by_the_former_annotation_is_known_and_ends_with_the_next_write() -> None:
    """kerf.dev/parked, as Kerf wrote it before 0.2."""
    harness = ExecutorHarness()
    pod = harness.pod(annotations={names.ANNOTATION_PARKED: "pause plan"})
    same = c.SuspendPod(
        **identity(pod), suspension="pause plan", reason="r", resource_version=pod.metadata.resource_version
    )
    assert await harness.patch(same) == []
    assert harness.now().metadata.resource_version == pod.metadata.resource_version, "nothing to write"
    assert await harness.patch(msgspec.structs.replace(same, suspension="")) == []
    assert names.ANNOTATION_PARKED not in harness.now().metadata.annotations


async def test_a_claim_is_allocated_at_the_version_that_was_decided_on_and_no_other() -> None:
    """Another writer has changed it since: its allocation would be overwritten, and a device given twice."""
    harness = ExecutorHarness()
    pod = harness.pod()
    request = {"name": "gpu", "exactly": {"deviceClassName": names.DEVICE_CLASS}}
    harness.create("ResourceClaim", "c", {"devices": {"requests": [request]}})
    claim = harness.core.find("ResourceClaim", "c", "default")
    device = c.ClaimDevice(request="gpu", pool="n", device="gpu-0", share_id="s", memory_mib=1024, compute_milli=100)
    wanted = c.AllocateClaim(name="c", uid=claim.metadata.uid, resource_version="1", devices=(device,))
    order = msgspec.structs.replace(harness.bind(pod), claims=(wanted,))
    answers = (await harness.bindings.bind(c.BindBatch(term=1, sequence=1, binds=(order,)))).answers
    assert [answer.outcome for answer in answers] == ["refused"]
    assert harness.now().spec.node_name == ""
    assert harness.core.find("ResourceClaim", "c", "default").status.allocation is None
    wanted = msgspec.structs.replace(wanted, resource_version=claim.metadata.resource_version)
    order = msgspec.structs.replace(order, uid="of a pod before of that name", claims=(wanted,))
    answers = (await harness.bindings.bind(c.BindBatch(term=1, sequence=2, binds=(order,)))).answers
    assert [answer.outcome for answer in answers] == ["throttled"]
    assert harness.core.find("ResourceClaim", "c", "default").status.allocation is None
    order = msgspec.structs.replace(order, uid=pod.metadata.uid)
    assert await harness.bindings.bind(c.BindBatch(term=1, sequence=2, binds=(order,))) == c.Answers()
    assert harness.now().spec.node_name == "n"
    allocation = harness.core.find("ResourceClaim", "c", "default").status.allocation
    assert [device.device for device in allocation.devices.results] == ["gpu-0"]


async def test_a_claim_that_this_watcher_has_not_seen_yet_is_asked_for() -> None:
    harness = ExecutorHarness()
    order = harness.bind(harness.pod())
    _, made = harness.cluster.create("ResourceClaim", {"metadata": {"name": "c"}, "spec": {"devices": {}}}, 0.0)
    uids = {"c": made["metadata"]["uid"], "gone": "uid-of-gone"}
    for name, outcome in (("c", "throttled"), ("gone", "refused")):
        wanted = c.AllocateClaim(name=name, uid=uids[name], resource_version="1", devices=())
        bind = msgspec.structs.replace(order, claims=(wanted,))
        answers = (await harness.bindings.bind(c.BindBatch(term=1, sequence=1, binds=(bind,)))).answers
        assert [answer.outcome for answer in answers] == [outcome]
    assert harness.now().spec.node_name == ""


async def test_a_volume_goes_to_one_claim() -> None:
    harness = ExecutorHarness()
    for claim in ("a", "b"):
        harness.create("PersistentVolumeClaim", claim, {"resources": {"requests": {"storage": "1Gi"}}})
    harness.create("PersistentVolume", "v", {"capacity": {"storage": "1Gi"}})
    assert await harness.patch(c.SelectNode(namespace="default", claim="a", node="n", volume="v")) == []
    assert harness.core.find("PersistentVolume", "v").spec.claim_ref.name == "a"
    assert await harness.patch(c.SelectNode(namespace="default", claim="a", node="n", volume="v")) == [], (
        "again is harmless"
    )
    assert await harness.patch(c.SelectNode(namespace="default", claim="b", node="n", volume="v")) == [
        ("default/b", "conflict")
    ]
    assert await harness.patch(c.SelectNode(namespace="default", claim="z", node="n")) == [("default/z", "gone")]
    assert await harness.patch(c.SelectNode(namespace="default", claim="b", node="n", volume="w")) == [
        ("default/b", "gone")
    ]


async def test_events_wait_until_no_bind_is_in_flight() -> None:
    harness = ExecutorHarness()
    async with announcing_by(harness):
        first, second = harness.pod("first"), harness.pod("second")
        await harness.bindings.bind(c.BindBatch(term=1, sequence=1, binds=(harness.bind(first),)))
        harness.gate.open.clear()
        binding = asyncio.create_task(
            harness.bindings.bind(c.BindBatch(term=1, sequence=2, binds=(harness.bind(second),)))
        )
        await eventually(lambda: harness.batches.binding == 1, what="a bind in flight")
        assert harness.events() == []
        harness.gate.open.set()
        await binding
        await eventually(lambda: harness.events() == ["Scheduled", "Scheduled"], what="both Events")
        assert (harness.announcer.written, harness.announcer.shed) == (2, 0)


async def test_warnings_are_written_while_pods_are_bound_all_the_time_and_keep_their_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a cluster that binds two pods a second the Events of Bindings never have their quiet moment."""
    monkeypatch.setattr(announcing, "QUEUE_LIMIT", 2)
    monkeypatch.setattr(announcing, "QUIET_S", 3600.0)
    harness = ExecutorHarness()
    pod = harness.pod()
    async with announcing_by(harness):
        for _ in range(5):
            harness.announcer.tell(touch(pod), "Scheduled", "Binding", "on n")
        harness.announcer.tell(touch(pod), "GpuLost", "Evicting", "because", warns=True)
        await eventually(lambda: harness.events() == ["GpuLost"])
        assert (harness.announcer.waiting, harness.announcer.shed) == (2, 3)


async def test_a_reason_that_the_server_had_no_time_for_is_written_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(announcing, "REPORT_INTERVAL_S", 0.0)
    harness = ExecutorHarness()
    pod = harness.pod()
    answers = [Result("throttled", "later"), Result("unknown", "no answer"), Result("done")]
    written: list[str] = []

    async def report_unscheduled(*_: Any, message: str, **__: Any) -> Result:
        written.append(message)
        return answers[len(written) - 1]

    monkeypatch.setattr(harness.announcer._writes.pods, "report_unscheduled", report_unscheduled)
    harness.announcer.report(c.ReportPending(**identity(pod), reason="Unschedulable", message="why"))
    async with announcing_by(harness):
        await eventually(lambda: harness.announcer.waiting == 0 and harness.events() == ["FailedScheduling"])
        assert written == ["why"] * 3


def _offered_five() -> ExecutorHarness:
    """Five Events wait, named r0 to r4."""
    harness = ExecutorHarness()
    pod = harness.pod()
    for number in range(5):
        harness.announcer.offer(c.AnnounceEvent(**identity(pod), reason=f"r{number}"))
    return harness


async def test_too_many_events_are_shed_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(announcing, "QUEUE_LIMIT", 3)
    harness = _offered_five()
    assert (harness.announcer.waiting, harness.announcer.shed) == (3, 2)
    await harness.announcer.flush()
    assert harness.events() == ["r0", "r1", "r2"]


async def test_the_end_does_not_wait_for_more_events_than_its_time_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full queue would hold a rolling upgrade up until the drain is broken off, and the Events would be lost too."""
    monkeypatch.setattr(announcing, "FLUSH_S", 0.0)
    harness = _offered_five()
    await harness.announcer.flush()
    assert harness.events() == []
    assert (harness.announcer.waiting, harness.announcer.shed) == (0, 5)


async def test_only_the_newest_report_of_a_pod_is_written() -> None:
    harness = ExecutorHarness()
    pod = harness.pod()
    for text in ("old", "new"):
        assert await harness.patch(c.ReportPending(**identity(pod), reason="Unschedulable", message=text)) == []
    async with announcing_by(harness):
        await eventually(lambda: harness.announcer.written == 2, what="condition and Event")
        conditions = harness.core.find("Pod", "p", "default").status.conditions
        assert [(x.type, x.status, x.reason, x.message) for x in conditions] == [
            ("PodScheduled", "False", "Unschedulable", "new")
        ]
        assert [(e["reason"], e["note"]) for e in harness.cluster.all("Event")] == [("FailedScheduling", "new")]


async def test_a_report_outlives_a_change_of_its_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    """Placement sends a reason once; a pod that is relabelled in the meantime must still get it."""
    monkeypatch.setattr(announcing, "REPORT_INTERVAL_S", 0.0)
    harness = ExecutorHarness()
    pod = harness.pod()
    harness.cluster.patch(
        "Pod", "default", "p", {"metadata": {"labels": {"a": "b"}}}
    )  # the core does not know of it yet
    await harness.patch(
        c.ReportPending(
            **identity(pod), reason="Unschedulable", message="m", resource_version=pod.metadata.resource_version
        )
    )
    async with announcing_by(harness):
        await eventually(lambda: harness.events() == ["FailedScheduling"], what="the Event after the second try")
        assert [x.message for x in harness.core.find("Pod", "p", "default").status.conditions] == ["m"]


async def test_a_report_of_a_pod_that_is_not_known_yet_is_written_when_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another watcher was further on, and placement follows that one."""
    monkeypatch.setattr(announcing, "REPORT_INTERVAL_S", 0.0)
    harness = ExecutorHarness()
    pod = harness.pod()
    harness.announcer._find_pod = lambda *_: next(seen)
    known = harness.core.find("Pod", "p", "default")
    seen = iter((None, known))
    await harness.patch(c.ReportPending(**identity(pod), reason="Unschedulable", message="m"))
    async with announcing_by(harness):
        await eventually(lambda: harness.events() == ["FailedScheduling"], what="the Event after the second try")
    assert not harness.announcer._early


async def test_a_report_of_a_pod_that_is_gone_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(announcing, "REPORT_INTERVAL_S", 0.0)
    harness = ExecutorHarness()
    await harness.patch(
        c.ReportPending(uid="gone", namespace="default", name="gone", reason="Unschedulable", message="m")
    )
    async with announcing_by(harness):
        await eventually(lambda: harness.announcer.waiting == 0, what="its end")
    assert (harness.events(), harness.announcer._early) == ([], set())


async def test_a_pending_reason_is_not_written_to_a_pod_that_has_been_bound() -> None:
    harness = ExecutorHarness()
    pod = harness.pod()
    await harness.bindings.bind(c.BindBatch(term=1, sequence=1, binds=(harness.bind(pod),)))
    await harness.patch(c.ReportPending(**identity(pod), reason="Unschedulable", message="late"))
    async with announcing_by(harness):
        await eventually(
            lambda: harness.announcer.waiting == 0 and harness.events() == ["Scheduled"], what="the Event alone"
        )
        assert all(x.status == "True" for x in harness.core.find("Pod", "p", "default").status.conditions)


def test_a_reason_that_is_on_the_pod_is_not_written_again() -> None:
    order = c.ReportPending(uid="u", namespace="n", name="p", reason="Unschedulable", message="m")
    condition = Condition(type="PodScheduled", status="False", reason="Unschedulable", message="m")
    pod = build.pod("p")
    assert not stands(pod, order)
    assert stands(Pod(metadata=pod.metadata, spec=pod.spec, status=PodStatus(conditions=(condition,))), order)
    other = Condition(type="PodScheduled", status="False", reason="Unschedulable", message="other")
    assert not stands(Pod(metadata=pod.metadata, spec=pod.spec, status=PodStatus(conditions=(other,))), order)
