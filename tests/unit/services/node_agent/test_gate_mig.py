"""The device gate for MIG instances (rule R7)."""

from __future__ import annotations

import msgspec
import pytest

from services.node_agent import messages as m
from services.node_agent.gate import refusal, used_mig_slices
from services.simulator.hollow import inventory_of
from shared.model.gpu import Gpu
from shared.model.grant import ContainerGrant, GpuShare
from shared.model.hollow_node import HollowNode
from shared.model.mig import MigInstance
from tests.unit.services.node_agent import make
from tests.unit.services.node_agent.make import NODE, agent, inventory, node_grant, start

FIXED = MigInstance(profile="3g.20gb", start=0, uuid="MIG-a")


def gpu(**mig: object) -> Gpu:
    return Gpu(uuid="g", index=0, model="NVIDIA-A100-SXM4-40GB", memory_mib=40960, **mig)  # type: ignore[arg-type]


def share(instance: MigInstance | None) -> GpuShare:
    return GpuShare(node="n", uuid="g", memory_mib=1000, compute_milli=100, mig=instance)


@pytest.mark.parametrize(
    ("device", "wanted", "code"),
    [
        (gpu(mig_enabled=True, mig_on_demand=True), share(None), "gpu-mig-mode"),
        (gpu(), share(FIXED), "gpu-mig-mode"),
        (gpu(mig_enabled=True), share(FIXED), "mig-instance-gone"),
        (gpu(mig_enabled=True), share(MigInstance(profile="2g.10gb", start=4)), "mig-not-on-demand"),
        (gpu(mig_enabled=True, mig_on_demand=True), share(MigInstance(profile="2g.10gb", start=2)), "mig-slices-taken"),
        (gpu(mig_enabled=True, mig_on_demand=True), share(MigInstance(profile="2g.10gb", start=4)), None),
        (gpu(mig_enabled=True, mig_instances=(FIXED,)), share(FIXED), "mig-slices-taken"),
    ],
)
def test_a_mig_instance_is_handed_over_once_and_only_if_it_exists(
    device: Gpu, wanted: GpuShare, code: str | None
) -> None:
    held = ContainerGrant(strategy="mig", gpus=(share(FIXED),))
    why = refusal(wanted, device, {}, used_mig_slices([held], {"g": device}))
    assert (why and why[0]) == code


def test_the_device_gate_counts_all_mig_instances() -> None:
    """Each start is checked against all of them, in any order of arrival."""
    mig = {"model": "NVIDIA-A100-SXM4-40GB", "memory_mib": 40960, "mig_enabled": True, "mig_on_demand": True}
    core = agent(inventory(gpus=("G0",), **mig))

    def starts(name: str, first_slice: int) -> str:
        came = node_grant(name, memory=9728)
        instance = MigInstance(profile="2g.10gb", start=first_slice)
        part = GpuShare(node=NODE, uuid="G0", memory_mib=9728, compute_milli=0, mig=instance)
        containers = {"main": ContainerGrant(strategy="advisory", gpus=(part,))}
        grant = msgspec.structs.replace(came.grant, containers=containers)
        core.handle(m.GrantReceived(msgspec.structs.replace(came, grant=grant)), 0.0)
        return make.refusal(core.handle(start(name), 0.0))

    assert [starts("a", 0), starts("b", 2)] == ["", ""]
    assert [starts("a-again", 0), starts("b-again", 2)] == ["mig-slices-taken", "mig-slices-taken"]


def test_hollow_nodes_may_have_gpus_in_mig_mode() -> None:
    node = HollowNode(name="n", model="NVIDIA-A100-SXM4-40GB", memory_mib=40960, count=3, mig={0: (), 1: (FIXED,)})
    made = inventory_of(node, "boot")
    assert [(g.mig_enabled, g.mig_on_demand, g.mig_instances) for g in made.gpus] == [
        (True, True, ()),
        (True, False, (FIXED,)),
        (False, False, ()),
    ]
    assert "mig" in made.strategies
    assert "mig" not in inventory_of(HollowNode(name="m"), "boot").strategies
