"""`kerf cordon` and `kerf drain` on a running stack with hollow nodes: real NATS, placement, watcher and agents."""

from __future__ import annotations

from typing import Any

import pytest

from cli.up import apply
from tests.contract.test_cli import CliCluster, manifest
from tests.contract.test_cli import cluster as cluster
from tests.support.waiting import eventually


async def gpus(cluster: CliCluster) -> dict[str, dict[str, Any]]:
    return {
        gpu["uuid"]: gpu | {"node": node["node"]}
        for node in (await cluster.json("inspect"))["nodes"]
        for gpu in node["gpus"]
    }


@pytest.fixture
async def taken(cluster: CliCluster) -> dict[str, Any]:
    """The GPU of pod `half`."""
    return next(gpu for gpu in (await gpus(cluster)).values() if gpu.get("containers"))


async def test_a_cordoned_gpu_takes_no_new_slices_and_its_pod_stays(cluster: CliCluster, taken: dict[str, Any]) -> None:
    answer = await cluster.json("cordon", taken["uuid"], "--reason", "a noisy fan")
    assert (answer["cordoned"], [pod["name"] for pod in answer["pods"]]) == (True, ["half"])

    async def draining() -> bool:
        found = (await gpus(cluster))[taken["uuid"]]
        return found["state"] == "draining" and found["reason"].endswith(": a noisy fan")

    await eventually(draining)
    answer = await apply(cluster.made.bus, [manifest("next", gpu_memory="1Gi")])
    await eventually(lambda: cluster.outcomes.get("next") == "PodBound")
    now = await gpus(cluster)
    assert now[taken["uuid"]]["containers"] == 1
    done = await cluster.kerf("inspect", "-d")
    assert "is draining: cordoned by" in done.out


async def test_an_uncordoned_gpu_takes_slices_again(cluster: CliCluster, taken: dict[str, Any]) -> None:
    await cluster.json("cordon", taken["node"])
    await cluster.json("cordon", taken["node"], "--undo")

    async def all_well() -> bool:
        return all(gpu.get("state") == "healthy" for gpu in (await gpus(cluster)).values())

    await eventually(all_well)


async def test_a_drained_node_is_empty(cluster: CliCluster, taken: dict[str, Any]) -> None:
    answer = await cluster.json("drain", taken["node"])
    assert (answer["drained"], answer["gone"], answer["left"]) == (True, ["team/half"], [])
    now = await gpus(cluster)
    assert all(
        gpu["state"] == "draining" and not gpu.get("containers") for gpu in now.values() if gpu["node"] == taken["node"]
    )


async def test_drain_waits_for_a_disruption_budget_and_shows_it(cluster: CliCluster, taken: dict[str, Any]) -> None:
    """With a pod that a budget protects, the drain ends at its time limit and says so; without the budget it
    continues."""
    kept = manifest("kept", gpu_memory="1Gi")
    kept["metadata"]["labels"] = {"app": "kept"}
    kept["spec"]["nodeSelector"] = {"kubernetes.io/hostname": taken["node"]}
    budget = {
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "keep", "namespace": "team"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "kept"}}},
    }  # fmt: skip
    await apply(cluster.made.bus, [budget, kept])
    await eventually(lambda: cluster.outcomes.get("kept") == "PodBound")
    done = await cluster.kerf("drain", taken["node"], "--timeout", "1")
    assert done.code == 1
    assert "team/half is gone" in done.err
    assert "team/kept: throttled" in done.err
    assert "stays cordoned" in done.err


async def test_cordoning_an_unknown_node_or_gpu_is_an_error(cluster: CliCluster) -> None:
    done = await cluster.kerf("cordon", "GPU-nowhere")
    assert (done.code, done.out) == (1, "")
    assert "GPU-nowhere" in done.err
