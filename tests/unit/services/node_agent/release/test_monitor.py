"""What the release monitor ends, and by which evidence. NVML is the fake one, folders stand for cgroups, and time is a
number."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from services.node_agent.handover.podresources import PodResourcesError
from services.node_agent.handover.slots import PodResourcesEntry
from services.node_agent.release.monitor import ReleaseMonitor
from shared.contracts.node_commands import LiveSlice
from shared.service.base import Health
from shared.telemetry.metrics import Metrics
from tests.unit.services.node_agent.devices.machine import TWO, Machine

UID = "3f0c9b1e-7a55-4c1b-9a43-2f6f0f3a8d11"
OTHER = "3f0c9b1e-7a55-4c1b-9a43-2f6f0f3a8d12"
WAIT_S = 60.0
BROKEN = f"{TWO}init 9\n"
"""NVML returns an error at once: the driver is not loaded."""


def lease(uid: str = UID, *gpus: str) -> LiveSlice:
    return LiveSlice(
        uid=uid,
        namespace="team",
        name="web-0",
        container="main",
        grant_id=f"g-{uid}",
        strategy="advisory",
        gpus=dict.fromkeys(gpus, (10, 0)),
    )


class Node:
    """The node that a monitor is told of: its leases, its cgroups, its kubelet, its GPUs and its time."""

    def __init__(self, folder: Path, *leases: LiveSlice) -> None:
        self.leases = list(leases)
        self.served: list[LiveSlice] = []
        self.kept: list[set[tuple[str, str]]] = []
        """The containers whose specs were kept, at each clean-up."""
        self.away: list[tuple[str, str]] = []
        self.withdrawn: list[list[tuple[str, str]]] = []
        self.ended: list[str] = []
        self.now = 0.0
        self.closed = frozenset({"GPU-a"})
        self.before_end: Callable[[], object] = lambda: None
        """Done between the decision to end a container and the check under the node's lock."""
        self.kubelet_error: PodResourcesError | None = None
        self.listed: tuple[PodResourcesEntry, ...] = ()
        self.logged: list[str] = []
        self.health, self.metrics = Health(), Metrics()
        self._pods = folder / "cgroup" / "kubepods"
        self._pods.mkdir(parents=True)
        (folder / "cgroup" / "cgroup.procs").touch()
        ctx: Any = SimpleNamespace(
            health=self.health,
            metrics=self.metrics,
            log=SimpleNamespace(warning=lambda what, **_: self.logged.append(what)),
        )
        node: Any = SimpleNamespace(
            agent=SimpleNamespace(
                containers=lambda: tuple(self.leases),
                live=lambda: tuple(self.served),
                store=SimpleNamespace(away=lambda: list(self.away)),
            ),
            devices=SimpleNamespace(closed_gpus=lambda: self.closed),
            end_container=self._end_container,
            mig=SimpleNamespace(wake=lambda: None),
        )
        specs: Any = SimpleNamespace(keep_only=lambda kept: self.kept.append(set(kept)), withdraw=self.withdrawn.append)
        self.monitor = ReleaseMonitor(
            ctx,
            node,
            specs=specs,
            strategies=None,
            list_slots=self._list_slots,
            plugin_dir=folder,
            cgroup_dir=folder / "cgroup",
            nvml_timeout_s=0.05,
            without_nvml_s=WAIT_S,
            clock=lambda: self.now,
        )

    def start(self, uid: str) -> None:
        (self._pods / f"pod{uid}").mkdir()

    def remove(self, uid: str) -> None:
        (self._pods / f"pod{uid}").rmdir()

    async def check(self, *times: float) -> list[str]:
        """Checks at each of these times. Returns the UIDs that have ended until then."""
        for self.now in times:
            await self.monitor.check()
        return self.ended

    def says(self) -> str:
        """Why the monitor is not ready; "" if it is."""
        part = self.health.report()["parts"]["release"]
        return "" if part["ok"] else str(part["detail"])

    def count(self) -> float:
        """How many containers ended without NVML, by the metric."""
        lines = self.metrics.render().decode().splitlines()
        return sum(float(one.split()[-1]) for one in lines if one.startswith("kerf_agent_released_without_nvml_total"))

    async def _list_slots(self) -> tuple[PodResourcesEntry, ...]:
        if self.kubelet_error is not None:
            raise self.kubelet_error
        return self.listed

    async def _end_container(self, uid: str, _: str, if_so: Callable[[], bool]) -> bool:
        self.before_end()
        if not if_so():
            return False
        self.leases = [one for one in self.leases if one.uid != uid]
        self.ended.append(uid)
        return True


@pytest.fixture
async def node(machine: Machine, tmp_path: Path) -> Node:
    """One container on GPU-a, of whose pod the cgroup is gone. NVML does not answer for GPU-a."""
    return Node(tmp_path, lease(UID, "GPU-a"))


async def test_a_container_ends_when_its_cgroup_is_gone_and_nothing_else_has_it(node: Node) -> None:
    node.start(UID)
    assert await node.check(0.0) == []
    node.remove(UID)
    assert await node.check(1.0) == [UID]
    assert (node.says(), node.count(), node.logged) == ("", 0.0, [])


async def test_what_a_server_for_another_node_leaves_is_removed_when_its_lease_has_ended(node: Node) -> None:
    """It is no container of this node's kubelet, so no check ends it."""
    node.leases, node.served = [], [lease(OTHER)]
    await node.check(0.0, 1.0)
    node.served = []
    await node.check(2.0, 3.0)
    assert node.kept == [{(OTHER, "main")}, set()]


async def test_a_hung_nvml_delays_the_end_for_the_time_that_is_set(node: Node, machine: Machine) -> None:
    """Meanwhile the health says why; afterwards a line of the log and a metric tell of the missing evidence."""
    machine.also("hang\n")
    assert await node.check(100.0, 130.0, 159.9) == []
    assert "1 containers seem to have ended, but that cannot be confirmed: NVML: " in node.says()
    assert await node.check(160.0) == [UID]
    assert (node.says(), node.count(), node.logged) == ("", 1.0, ["ended_without_nvml"])


async def test_an_nvml_that_fails_is_waited_for_as_long_as_one_that_hangs(node: Node, machine: Machine) -> None:
    machine.become(BROKEN)
    assert await node.check(0.0, 59.9) == []
    assert await node.check(60.0) == [UID]


async def test_an_answer_of_nvml_starts_the_time_anew(node: Node, machine: Machine) -> None:
    machine.become(BROKEN)
    node.leases = [lease(UID, "GPU-a"), lease(OTHER, "GPU-a")]
    node.start(OTHER)
    node.closed = frozenset()
    await node.check(0.0, 61.0)
    machine.become(TWO)
    assert await node.check(62.0) == [UID]
    node.remove(OTHER)
    node.closed = frozenset({"GPU-a"})
    machine.become(BROKEN)
    assert await node.check(63.0, 122.9) == [UID]
    assert await node.check(123.0) == [UID, OTHER]


async def test_the_time_counts_only_checks_in_a_row(node: Node, machine: Machine) -> None:
    """While no container seems to have ended, and while the kubelet does not answer, nothing asks NVML."""
    machine.become(BROKEN)
    await node.check(0.0)
    node.start(UID)
    await node.check(30.0)
    node.remove(UID)
    assert await node.check(70.0) == []
    node.kubelet_error = PodResourcesError("the kubelet does not answer")
    assert await node.check(100.0) == []
    node.kubelet_error = None
    assert await node.check(140.0, 199.9) == []
    assert await node.check(200.0) == [UID]


async def test_without_nvml_no_container_ends_on_a_gpu_that_may_take_slices(node: Node, machine: Machine) -> None:
    """All GPUs of the container count, and the health goes on to say what is not confirmed."""
    machine.become(BROKEN)
    node.leases = [lease(UID, "GPU-a", "GPU-b"), lease(OTHER, "GPU-a")]
    assert await node.check(0.0, 600.0) == [OTHER]
    assert "1 containers seem to have ended" in node.says()
    node.closed = frozenset({"GPU-a", "GPU-b"})
    assert await node.check(601.0) == [OTHER, UID]


async def test_a_container_that_uses_another_nodes_gpu_needs_no_nvml_in_the_end(node: Node, machine: Machine) -> None:
    """Its node may have no driver at all; the other node releases the GPU by its own evidence."""
    machine.become(BROKEN)
    node.leases, node.closed = [lease(UID)], frozenset()
    assert await node.check(0.0, 59.9) == []
    assert await node.check(60.0) == [UID]


async def test_without_nvml_a_container_whose_gpu_opens_meanwhile_does_not_end(node: Node, machine: Machine) -> None:
    machine.become(BROKEN)

    def opens() -> None:
        node.closed = frozenset()

    node.before_end = opens
    assert await node.check(0.0, 60.0) == []
    assert (node.count(), node.logged) == (0.0, [])


async def test_without_nvml_a_container_that_starts_meanwhile_does_not_end(node: Node, machine: Machine) -> None:
    machine.become(BROKEN)
    node.before_end = lambda: node.start(UID)
    assert await node.check(0.0, 60.0) == []
    assert node.count() == 0.0


async def test_without_nvml_the_cgroup_still_decides(node: Node, machine: Machine) -> None:
    """A process that hangs in the driver keeps its cgroup, for ever if need be."""
    machine.also("hang\n")
    node.start(UID)
    node.leases.append(lease(OTHER, "GPU-a"))
    assert await node.check(0.0, 60.0, 6000.0) == [OTHER]


async def test_without_nvml_the_kubelet_still_decides(node: Node, machine: Machine) -> None:
    """A container that the kubelet lists has not ended, however long NVML hangs."""
    machine.become(BROKEN)
    node.kubelet_error = PodResourcesError("the kubelet does not answer")
    assert await node.check(0.0, 60.0, 6000.0) == []
    assert "the kubelet does not answer" in node.says()


async def test_specs_of_pods_on_the_host_are_withdrawn_at_each_check(tmp_path: Path) -> None:
    """A start that was let through a moment before the order may just have written one."""
    node = Node(tmp_path, lease("a"))
    node.start("a")
    node.away = [("a", "main")]
    await node.check(1, 2)
    assert node.withdrawn.count([("a", "main")]) >= 2
