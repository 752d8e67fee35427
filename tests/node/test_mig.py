"""MIG on a real kubelet: instances that the agent makes for pods, and destroys when their containers have ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.node.cluster import NodeCluster, cluster_on, grant_of
from tests.support.waiting import eventually
from tools.sandbox import Sandbox
from tools.sandbox.agent import Gpus
from tools.sandbox.inside import minor

PROFILES = (
    "profile {0} 0 19 1g.10gb 1 9984 1 7f",
    "profile {0} 7 20 1g.10gb+me 1 9984 1 7f",
    "profile {0} 9 15 1g.20gb 1 20090 2 55",
    "profile {0} 1 14 2g.20gb 2 20090 2 15",
    "profile {0} 2 9 3g.40gb 3 40448 4 11",
    "profile {0} 3 5 4g.40gb 4 40448 4 1",
    "profile {0} 4 0 7g.80gb 7 81152 8 1",
)
"""Those of an H100 of 80 GB, as NVIDIA's MIG User Guide lists them."""


def in_mig_mode(gpus: Gpus, *more: str) -> None:
    """`more`: further lines of the machine."""
    gpus.set(mig=(0, 1), more=[*(line.format(gpu) for gpu in (0, 1) for line in PROFILES), *more])


@pytest.fixture
async def mig(sandbox: Sandbox, gpus: Gpus) -> AsyncIterator[NodeCluster]:
    """GPUs 0 and 1 are in MIG mode, without instances."""
    in_mig_mode(gpus)
    async with cluster_on(sandbox, gpus, {"KERF_MIG": "on_demand"}) as running:
        yield running


def standing(gpus: Gpus) -> dict[tuple[int, int], int]:
    """The starts of the instances that stand, by GPU and id."""
    found: dict[tuple[int, int], int] = {}
    file = Path(gpus.folder / "machine.mig")
    for words in (line.split() for line in file.read_text().splitlines()):
        key = (int(words[1]), int(words[2]))
        if words[0] == "made":
            found[key] = int(words[3])
        elif words[0] == "gone":
            del found[key]
    return found


async def test_pods_get_instances_that_are_made_for_them(mig: NodeCluster) -> None:
    asked = {"two": "2g.20gb", "one": "1g.10gb", "three": "3g.40gb"}
    await asyncio.gather(*(mig.create_pod(name, **{f"mig_{profile}": "1"}) for name, profile in asked.items()))
    pods = await mig.running(*asked)
    for name, pod in pods.items():
        (share,) = grant_of(pod).containers["main"].gpus
        assert share.mig is not None
        assert share.mig.profile == asked[name]
        gpu = next(i for i in range(2) if mig.gpus.uuid(i) == share.uuid)
        assert (gpu, share.mig.start) in {(on, start) for (on, _), start in standing(mig.gpus).items()}
        devices = (await mig.inside(name)).devices
        assert f"/dev/nvidia{minor(gpu)}" in devices
        caps = [device for device in devices if "nvidia-cap" in device]
        assert len(caps) == 2, "of the GPU instance and of its compute instance, and of no other one"
    assert len(standing(mig.gpus)) == 3
    await mig.delete("two")
    await mig.gone("two")
    await eventually(lambda: len(standing(mig.gpus)) == 2, within_s=30, what="its instance is destroyed")
    mig.agent.kill()
    mig.agent.start()
    await mig.offered()
    await mig.running("one", "three")
    assert len(standing(mig.gpus)) == 2, "a killed agent and the next one leave what runs"
    await mig.delete("one", "three")
    await mig.gone("one", "three")
    await mig.free()
    await eventually(lambda: standing(mig.gpus) == {}, within_s=30, what="all are destroyed")


async def test_half_an_instance_is_completed_and_one_in_use_is_kept(mig: NodeCluster) -> None:
    """The driver refuses the second of the two calls that make an instance; the agent is killed; it works again."""
    await mig.create_pod("first", **{"mig_7g.80gb": "1"})
    await mig.running("first")
    await mig.delete("first")
    await mig.gone("first")
    await mig.free()
    await eventually(lambda: standing(mig.gpus) == {}, within_s=30, what="the first pod's instance is destroyed")
    in_mig_mode(mig.gpus, "deny 0 ci", "deny 1 ci")
    await mig.create_pod("one", **{"mig_2g.20gb": "1"})
    await mig.wait_for_event("one", "NVML: Unknown Error")
    (half,) = standing(mig.gpus)
    mig.agent.kill()
    in_mig_mode(mig.gpus)
    mig.agent.start()
    await mig.offered()
    await mig.running("one")
    assert list(standing(mig.gpus)) == [half], "the half is completed, and no second one made"
    gpu, instance = half
    in_mig_mode(mig.gpus, f"process {gpu} 1 100 {instance}")
    await mig.delete("one")
    await mig.gone("one")
    await mig.free()
    await eventually(lambda: "is used by process 1" in mig.sandbox.log("agent"), within_s=30, what="the agent says why")
    assert list(standing(mig.gpus)) == [half], "never while it is in use"
    in_mig_mode(mig.gpus)
    await eventually(lambda: standing(mig.gpus) == {}, within_s=30, what="it is destroyed when it is free")
