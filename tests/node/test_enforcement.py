"""Firm slices on a real kubelet and containerd: the canary runs, and containers find library and control block."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from services.node_agent.strategies import layout
from tests.node.cluster import WITHIN_S, NodeCluster, cluster_on, grant_of
from tests.support.native import built
from tests.support.waiting import eventually
from tools.sandbox import Sandbox
from tools.sandbox.agent import MEMORY_MIB, Gpus

FIRM = {"kerf.dev/isolation": "firm"}
POLICED = {"kerf.dev/isolation": "policed"}


class SameGpus(Gpus):
    """NVML reports the UUIDs of the fake driver."""

    def uuid(self, index: int) -> str:
        return f"GPU-00000000-0000-0000-0000-{index + 1:012x}"

    def set(self, *, errors: Mapping[int, int] | None = None, more: Iterable[str] = ()) -> None:
        """Each process that asks is on all GPUs, so the canary finds itself there."""
        super().set(errors=errors, more=[*(f"process {index} self 300" for index in range(self.count)), *more])


@pytest.fixture
async def cluster(sandbox: Sandbox, tmp_path: Path) -> AsyncIterator[NodeCluster]:
    async with enforcing(sandbox, tmp_path) as running:
        yield running


@contextlib.asynccontextmanager
async def enforcing(
    sandbox: Sandbox, tmp_path: Path, *, preemption: Mapping[str, Any] | None = None, idle_after_s: float = 0
) -> AsyncIterator[NodeCluster]:
    """A node whose agent has seen its limits hold, on the fake driver."""
    build = built("enforcement")
    gpus = SameGpus(tmp_path)
    settings = {
        "KERF_NODE_AGENT_INTERPOSER_DIR": str(build), "KERF_NODE_AGENT_LIBCUDA": str(build / "libcuda.so.1"),
        "KERF_NODE_AGENT_USAGE_S": "0.2", "KERF_NODE_AGENT_TURNS_ON_ANY_GPU": "true",
        "KERF_NODE_AGENT_IDLE_AFTER_S": str(idle_after_s),
        "KERF_FAKE_CUDA": str(tmp_path / "world"),  # the canary's processes share a GPU
    }  # fmt: skip
    async with cluster_on(sandbox, gpus, settings, preemption=preemption) as running:
        try:
            await eventually(
                lambda: running.agent.ready and running.agent.samples("kerf_agent_enforcement_proven") == {"": 1.0},
                within_s=WITHIN_S,
            )
        except AssertionError:
            raise AssertionError(f"the canary has not passed; agent: {sandbox.log('agent')}") from None
        yield running


async def test_a_firm_slice_has_its_library_and_a_read_only_page(cluster: NodeCluster) -> None:
    await cluster.create_pod("firm", gpu_memory="2Gi", gpu_compute="30", annotations=FIRM)
    pod = (await cluster.running("firm"))["firm"]
    assert grant_of(pod).containers["main"].strategy == "interposer"
    inside = root(cluster, pod)
    assert read(inside / "etc/ld.so.preload") == b"/run/kerf/libkerf.so\n"
    assert read(inside / "run/kerf/libkerf.so")[:4] == b"\x7fELF"
    said = layout.Orders.from_buffer_copy(read(inside / "run/kerf/orders"))
    assert (said.gpu_count, said.gpu[0].memory_limit_bytes, said.gpu[0].compute_milli) == (1, 2 << 30, 300)
    assert {name: "ro" in options for name, options in mounted(cluster, pod).items()} == {
        "libkerf.so": True,
        "orders": True,
        "peers": True,
        "counters": False,
        "signal": False,
    }
    for name in ("counters", "signal"):
        with (
            (inside / "run/kerf" / name).open("ab", buffering=0) as file,
            pytest.raises(OSError, match="No space left"),
        ):
            file.write(b"x" * (1 << 20))
    shown = await eventually(lambda: cluster.agent.samples("kerf_agent_slice_limit_bytes"), within_s=WITHIN_S)
    assert list(shown.values()) == [2048.0 * 2**20]
    control_blocks = Path(f"/proc/{cluster.sandbox.outside(cluster.agent.pid)}/root/run/kerf/slices")
    assert count(control_blocks) == 1
    await cluster.delete("firm")
    await cluster.gone("firm")
    await eventually(
        lambda: count(control_blocks) == 0, within_s=WITHIN_S, what="the control block is removed with its container"
    )


async def test_two_pods_without_reserved_compute_share_time_by_priority(cluster: NodeCluster) -> None:
    gpu = {"kerf.dev/gpu-uuid": cluster.gpus.uuid(0)} | FIRM
    await cluster.create_pod("low", gpu_memory="2Gi", annotations=gpu | {"kerf.dev/tier": "opportunistic"})
    await cluster.create_pod("usual", gpu_memory="2Gi", annotations=gpu)
    pods = await cluster.running("low", "usual")
    assert {grant_of(pod).containers["main"].strategy for pod in pods.values()} == {"time_slice"}
    said = {
        name: layout.Orders.from_buffer_copy(read(root(cluster, pod) / "run/kerf/orders")) for name, pod in pods.items()
    }
    assert (said["low"].tier, said["low"].peer_count, said["usual"].tier) == (layout.LOW, 1, layout.NORMAL)
    peer = root(cluster, pods["low"]) / "run/kerf/peers" / said["low"].peer[0].value.decode()
    assert same(peer, root(cluster, pods["usual"]) / "run/kerf/signal")


async def test_a_slice_gets_what_is_free_beyond_its_request_and_loses_it_when_another_pod_comes(
    cluster: NodeCluster,
) -> None:
    """From the annotation to the control block. The agent keeps 1 GiB of the GPU, and what pods are guaranteed."""
    notes = {"kerf.dev/gpu-uuid": cluster.gpus.uuid(0)} | FIRM
    total_mib = MEMORY_MIB
    await cluster.create_pod("burst", gpu_memory="2Gi", annotations=notes | {"kerf.dev/gpu-memory-limit": "100%"})
    pod = (await cluster.running("burst"))["burst"]
    (share,) = grant_of(pod).containers["main"].gpus
    assert (share.memory_mib, share.memory_limit_mib) == (2048, total_mib)

    def limits_mib() -> tuple[int, int]:
        gpu = layout.Orders.from_buffer_copy(read(root(cluster, pod) / "run/kerf/orders")).gpu[0]
        return gpu.memory_limit_bytes >> 20, gpu.shown_bytes >> 20

    foreign_mib = total_mib - 1024 - (await eventually(lambda: limits_mib()[0] > 2048 and limits_mib()))[0]
    assert 0 <= foreign_mib <= 1024, "what NVML reports of the canary's own processes"
    assert (await cluster.inside("burst")).environment["KERF_GPU_MEMORY_LIMIT_MIB"] == str(total_mib)
    await cluster.create_pod("other", gpu_memory="8Gi", annotations=notes)
    await cluster.running("other")
    assert limits_mib() == (total_mib - 1024 - foreign_mib - 8192, total_mib)
    await cluster.delete("other")
    await cluster.gone("other")
    await eventually(lambda: limits_mib()[0] == total_mib - 1024 - foreign_mib, within_s=WITHIN_S)


async def test_a_policed_container_that_takes_more_than_its_slice_is_ended_and_its_neighbour_lives(
    cluster: NodeCluster,
) -> None:
    """NVML reports memory of a process that does not use the library. The kernel freezes the pod, and the watcher
    evicts it."""
    notes = {"kerf.dev/gpu-uuid": cluster.gpus.uuid(0)} | POLICED
    for name in ("hostile", "honest"):
        await cluster.create_pod(name, gpu_memory="2Gi", annotations=notes)
    pods = await cluster.running("hostile", "honest")
    assert {grant_of(pod).containers["main"].strategy for pod in pods.values()} == {"policed"}
    honest = cluster.processes(pods["honest"])[0]
    lines = {
        "hostile": f"process 0 {in_sandbox(cluster.processes(pods['hostile'])[0])} 3000",
        "honest": f"process 0 {in_sandbox(honest)} 2048",
    }
    cluster.gpus.set(more=lines.values())
    told = await cluster.wait_for_event("hostile", "according to NVML", "were ended with SIGKILL")
    assert f"3000 MiB on GPU {cluster.gpus.uuid(0)}" in told
    assert "2048 MiB are granted, and 256 MiB beyond that are tolerated" in told
    await cluster.gone("hostile")
    done = cluster.agent.samples("kerf_agent_police_actions_total")
    assert done['action="frozen"'] == 1
    pod = (await cluster.pods())["honest"]
    assert (pod["status"]["containerStatuses"][0]["restartCount"], cluster.processes(pod)) == (0, [honest])


def in_sandbox(pid: int) -> int:
    """The id of a process in the sandbox's namespace, in which the agent and its NVML see it."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line.split()[2] for line in lines if line.startswith("NSpid:")))


def root(cluster: NodeCluster, pod: Any) -> Path:
    """The container's own file system."""
    return Path(f"/proc/{cluster.processes(pod)[0]}/root")


def mounted(cluster: NodeCluster, pod: Any) -> dict[str, list[str]]:
    """The entries below /run/kerf, with the options of its mount."""
    lines = [line.split() for line in Path(f"/proc/{cluster.processes(pod)[0]}/mounts").read_text().splitlines()]
    return {
        Path(place).name: options.split(",") for _, place, _, options, *_ in lines if place.startswith("/run/kerf/")
    }


def read(path: Path) -> bytes:
    return path.read_bytes()


def count(folder: Path) -> int:
    return len(list(folder.iterdir()))


def same(one: Path, other: Path) -> bool:
    return one.stat().st_ino == other.stat().st_ino
