"""The preemptor on NATS and on the command line, on a stack of its own: who receives a plan's events, and their
text."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cli.stack import Stack, stack
from cli.up import apply, node_object
from shared.bus.embedded import EmbeddedServer
from shared.bus.nats_bus import NatsBus
from shared.bus.port import Incoming
from shared.contracts import metrics_queries, queries, subjects
from shared.contracts.base import decode, encode
from shared.contracts.envelope import unwrap, wrap
from shared.contracts.events import PodBound, PreemptionAbandoned
from shared.contracts.preemption import Alternative, Beneficiary, Plan, PreemptAnswer, Victim
from shared.telemetry import trace_id_for
from tests.support.command import Command, kerf
from tests.support.waiting import eventually

NODES = [{"name": "gpu-0", "model": "NVIDIA-A100", "count": 2, "memory_mib": 40_960}]


def pod(name: str, namespace: str, priority: str, *, gpus: int = 1, **annotations: str) -> dict[str, Any]:
    limits = {"kerf.dev/gpu": str(gpus)}
    notes = {f"kerf.dev/{key.replace('_', '-')}": value for key, value in annotations.items()}
    spec = {
        "priorityClassName": priority,
        "terminationGracePeriodSeconds": 0,
        "containers": [{"name": "main", "image": "pause", "resources": {"limits": limits}}],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "annotations": notes},
        "spec": spec,
    }


class PreemptingCluster:
    """A stack with the preemptor, and the events of plans that a subscriber hears."""

    def __init__(self, made: Stack) -> None:
        self.made = made
        self.bound: set[str] = set()
        self.heard: list[tuple[str, str]] = []
        """Of each event about a plan: its kind, and its namespace."""
        self.spans: list[metrics_queries.Span] = []
        self.uids: dict[str, str] = {}
        """Of bound pods, by name."""

    async def trace(self, incoming: Incoming) -> None:
        self.spans += decode(incoming.payload, metrics_queries.SpanBatch).spans

    async def hear(self, incoming: Incoming) -> None:
        _, event = unwrap(incoming.payload)
        if isinstance(event, PodBound):
            self.bound.add(event.name)
            self.uids[event.name] = event.uid
        elif hasattr(event, "plan"):
            self.heard.append((event.VERB, incoming.subject.rsplit(".", 1)[1]))

    async def create(self, *pods: dict[str, Any]) -> None:
        answer = await apply(self.made.bus, list(pods))
        assert answer.refusals == ()


@pytest.fixture
async def cluster() -> AsyncIterator[PreemptingCluster]:
    """One node of two GPUs, both with pods of the lowest priority; one of them has an hour of minimum run time left."""
    async with stack(NODES, preemption={}, trace_ratio=0.0) as running:
        one = PreemptingCluster(running)
        await running.bus.subscribe(subjects.SPANS_ALL, one.trace)
        await running.bus.subscribe(f"{subjects.VERSION}.event.>", one.hear)
        namespaces = [
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}} for name in ("theirs", "ours")
        ]
        classes = [
            {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}, "value": value}
            for name, value in (("low", 0), ("high", 100))
        ]
        await one.create(
            *classes,
            *namespaces,
            *map(node_object, NODES),
            pod("low-0", "theirs", "low"),
            pod("low-1", "theirs", "low", min_runtime="1h"),
        )
        await eventually(lambda: one.bound == {"low-0", "low-1"}, what="both are bound")
        yield one


async def test_the_events_of_a_plan_go_once_to_both_namespaces(cluster: PreemptingCluster) -> None:
    await cluster.create(pod("high", "ours", "high"))
    await eventually(lambda: "high" in cluster.bound, what="the important pod is bound")
    await eventually(
        lambda: ("executed", "theirs") in cluster.heard, what="the preempted pods' namespace has the events"
    )
    for what in ("proposed", "reserved", "executed"):
        assert sorted(where for verb, where in cluster.heard if verb == what) == ["ours", "theirs"]
    counted = cluster.made.services["preemptor"].metrics.render().decode()
    assert 'kerf_preemptor_plans_total{outcome="executed"} 1' in counted


async def test_a_preemption_is_one_story_whatever_the_sampling(cluster: PreemptingCluster) -> None:
    """No pod of this stack is sampled. The pod that gains has the plan, the eviction and its Binding in its trace, and
    the pod that went has its own spans, linked to that trace."""
    await cluster.create(pod("high", "ours", "high"))
    story = {
        ("preemptor", "preemption.plan"),
        ("placement", "preemption.reserved"),
        ("preemptor", "preemption.evict"),
        ("placement", "preemption.executed"),
        ("placement", "placement"),
        ("placement", "bound"),
    }
    of_the_victim = {
        ("preemptor", "preemption.victim"),
        ("preemptor", "preemption.evict"),
        ("placement", "preempted.evict"),
    }

    def named(uid: str) -> set[tuple[str, str]]:
        return {(span.service, span.name) for span in cluster.spans if span.trace_id == f"{trace_id_for(uid):032x}"}

    await eventually(lambda: story <= named(cluster.uids.get("high", "")), what="the whole story in one trace")
    await eventually(lambda: of_the_victim <= named(cluster.uids["low-0"]), what="the victim's part in its own trace")
    gaining = f"{trace_id_for(cluster.uids['high']):032x}"
    victim = f"{trace_id_for(cluster.uids['low-0']):032x}"
    assert all(
        any(gaining in link for link in span.links)
        for span in cluster.spans
        if span.trace_id == victim and (span.service, span.name) in of_the_victim
    )
    (plan,) = [span for span in cluster.spans if span.name == "preemption.plan"]
    (evict,) = [span for span in cluster.spans if span.name == "preemption.evict" and span.trace_id == gaining]
    assert any(victim in link for link in plan.links)
    assert plan.events == ("evict theirs/low-0",)
    assert evict.parent_id == plan.span_id
    assert evict.events == ("theirs/low-0: done",)
    assert named(cluster.uids["low-1"]) == set(), "a pod that no plan concerns is not recorded"


async def test_kerf_events_shows_a_plan_once(bus: NatsBus, nats: EmbeddedServer) -> None:
    command = await Command.start("events", "--count", "2", nats=nats.url)
    numbers = itertools.count()

    async def ended() -> bool:
        """Creates plans until two arrive: nothing shows when the other process has subscribed."""
        victims = (
            Victim(uid="l", namespace="theirs", name="low-0", grant_id="g", action="pause"),
            Victim(uid="m", namespace="theirs", name="low-1", grant_id="h", action="move", to="gpu-1"),
        )
        plan = Plan(
            plan_id=f"p{next(numbers)}",
            beneficiaries=(Beneficiary(uid="b", namespace="ours", name="high", node="gpu-0"),),
            victims=victims,
            deadline_s=60,
            price_gpu_seconds=11,
        )
        event = PreemptionAbandoned(plan=plan, reason="a budget said no")
        for namespace in ("theirs", "ours"):
            identity, payload = wrap(event, source="/kerf/test/1", now_s=0.0)
            bus.publish_event(subjects.event_in_namespace("preemption", "abandoned", namespace), payload, identity)
        return command.process.returncode is not None

    await eventually(ended, within_s=30, every_s=0.2, what="two plans in the other process")
    done = await command.done()
    lines = done.out.splitlines()
    assert len(lines) == len({line.split("(plan ")[1] for line in lines}) == 2
    assert (
        "preemption.abandoned ours/high on gpu-0, theirs/low-0 is paused, theirs/low-1 is migrated to gpu-1; "
        "1 pod would be evicted (1 with capacity reserved elsewhere) and lose 11 GPU-seconds" in lines[0]
    )
    assert lines[0].endswith(": a budget said no")


async def test_a_dry_run_says_why_no_pod_would_be_preempted(cluster: PreemptingCluster) -> None:
    await cluster.create(pod("huge", "ours", "high", gpus=2))
    done = await kerf("preempt", "--dry-run", "ours/huge", nats=cluster.made.url)
    assert done.code == 0, done.err
    left = next(line for line in done.out.splitlines() if line.startswith("Not preempted: "))
    assert sorted(left.removeprefix("Not preempted: ").split("; ")) == [
        "1 pod: eligible, but preempting them does not free enough",
        "1 pod: minimum run time",
    ]


async def test_what_if_says_which_pods_would_be_preempted_for_a_pod_that_does_not_exist(
    cluster: PreemptingCluster, tmp_path: Path
) -> None:
    dream = pod("dream", "ours", "high")
    dream["spec"] |= {"schedulerName": "kerf", "priority": 100}
    file = tmp_path / "dream.json"
    file.write_text(json.dumps(dream))
    done = await kerf("what-if", "-f", str(file), nats=cluster.made.url)
    assert done.code == 0, done.err
    assert "would-wait" in done.out
    assert "Preemption: 1 pod would be evicted" in " ".join(done.out.split())
    said = json.loads((await kerf("what-if", "-f", str(file), "--json", nats=cluster.made.url)).out)
    assert [victim["name"] for victim in said["preemption"]["plan"]["victims"]] == ["low-0"]
    assert cluster.heard == [], "nothing is planned"


async def test_a_dry_run_shows_the_alternatives(bus: NatsBus, nats: EmbeddedServer) -> None:
    plan = Plan(plan_id="p", beneficiaries=(), victims=(), deadline_s=60)
    others = (
        Alternative(nodes=("gpu-1",), action="evict", victims=2, price_gpu_seconds=90),
        Alternative(nodes=("gpu-2",), action="evict", victims=1, price_gpu_seconds=120, at_least=True),
    )

    async def answer(incoming: Incoming) -> None:
        await bus.respond(incoming, encode(PreemptAnswer(plan=plan, sentence="1 pod would end", alternatives=others)))

    await bus.subscribe(queries.PREEMPT.subject, answer)
    done = await kerf("preempt", "--dry-run", "ours/high", nats=nats.url)
    assert done.code == 0, done.err
    assert "Alternative on gpu-1: evict 2 pods, at 90 GPU-seconds" in done.out
    assert "Alternative on gpu-2: evict at least 1 pod, at least 120 GPU-seconds" in done.out
