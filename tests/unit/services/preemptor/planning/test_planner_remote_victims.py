"""A pod whose GPU is on another node is a victim where its GPU is, and there alone."""

from __future__ import annotations

import msgspec

from services.preemptor import messages as m
from shared.contracts.facts import Gone, Put
from shared.model.grant import ContainerGrant, GpuShare, Grant
from shared.model.objects import Pod, PodStatus
from tests.support import build
from tests.support.harness.preemptor import TOTAL_MIB, Preemptor


def run_remote(preemptor: Preemptor, name: str, *, client: str = "c", server: str = "s", gpu: int = 0) -> Pod:
    share = GpuShare(node=server, uuid=f"{server}-gpu-{gpu}", memory_mib=TOTAL_MIB, compute_milli=1000)
    part = ContainerGrant(strategy="remote", serving="exclusive", gpus=(share,))
    grant = Grant(grant_id=f"grant-{name}", term=1, containers={"c": part})
    pod = build.bound(build.gpu_pod(name, gpus=1, requests={"cpu": "60"}), client, grant)
    pod = msgspec.structs.replace(pod, status=PodStatus(phase="Running", start_time="2026-11-21T00:00:00Z"))
    preemptor.pods[name] = pod
    preemptor.send(m.FactsSeen((Put(object=pod),)))
    return pod


def test_it_is_preempted_for_a_pod_that_needs_the_gpu_on_its_node() -> None:
    preemptor = Preemptor("s", gpus=1)
    preemptor.send(m.FactsSeen((Put(object=build.node("c")),)))
    run_remote(preemptor, "r")
    preemptor.wait("high")
    assert preemptor.victims() == [["r"]]


def test_it_is_no_victim_for_a_gpu_of_the_node_where_it_runs() -> None:
    """Its end frees no GPU there, and the local pod is protected."""
    preemptor = Preemptor("c", gpus=1)
    preemptor.send(m.FactsSeen((Put(object=build.node("s", unschedulable=True)),)))
    preemptor.send(m.InventorySeen(build.inventory("s", gpus=1)))
    preemptor.run("local", "c", 0, priority=200)
    run_remote(preemptor, "r")
    preemptor.wait("high")
    assert preemptor.victims() == []


def test_its_end_frees_no_cpu_of_the_node_of_its_gpu() -> None:
    """The waiting pod needs CPU that only a local pod of that node has."""
    preemptor = Preemptor("s", gpus=2)
    preemptor.send(m.FactsSeen((Put(object=build.node("c")),)))
    run_remote(preemptor, "r")
    preemptor.run("local", "s", 1, ran_s=90_000, requests={"cpu": "60"})
    preemptor.wait("high", requests={"cpu": "60"})
    assert preemptor.victims() == [["local"]]


def test_it_counts_once_for_two_that_need_its_gpu() -> None:
    preemptor = Preemptor("s", gpus=1)
    preemptor.send(m.FactsSeen((Put(object=build.node("c")),)))
    run_remote(preemptor, "r")
    preemptor.wait("first")
    preemptor.wait("second")
    assert preemptor.victims() == [["r"]]


def test_a_pod_waits_for_a_gpu_that_its_server_still_has() -> None:
    """The pod is gone, the serving node has not released: nothing is preempted for what comes back anyway."""
    preemptor = Preemptor("s", gpus=2)
    preemptor.send(m.FactsSeen((Put(object=build.node("c")),)))
    pod = run_remote(preemptor, "r")
    preemptor.run("local", "s", 1)
    preemptor.send(m.FactsSeen((Gone(object=pod),)))
    preemptor.wait("high")
    assert preemptor.victims() == []
