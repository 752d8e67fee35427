"""Grants on GPUs that are not what they were are given back after a while, so that their pods are replaced."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from services.node_agent import messages as m
from services.node_agent.core import Agent
from services.node_agent.gone_gpus import AFTER_S
from services.node_agent.state import Checkpoint, KnownGrant
from shared.contracts.events import SliceReleased
from shared.contracts.node_commands import NodeGrant, RemoteEnd
from shared.model.grant import ContainerGrant, GpuShare, Grant
from shared.model.mig import MigInstance
from tests.unit.services.node_agent.make import (
    NODE,
    agent,
    ended,
    events,
    grant,
    inventory,
    node_grant,
    released,
    start,
)  # fmt: skip

REPLACED = inventory("boot-2", ("G8", "G1"))


def given_back(core: Agent) -> list[str]:
    """The grants that are released when enough time has passed."""
    core.handle(m.Tick(), 0.0)
    return released(core.handle(m.Tick(), AFTER_S))


def test_a_grant_on_a_gpu_that_a_boot_has_not_brought_back_is_given_back_for_good() -> None:
    core = agent(grant("a"), start("a"), grant("b", gpu="G1"), start("b"), REPLACED)
    core.handle(m.Tick(), 1.0)
    assert core.handle(m.Tick(), AFTER_S) == []
    orders = core.handle(m.Tick(), AFTER_S + 1.0)
    assert isinstance(orders[0], m.Save), "on disk before it is said"
    said = events(orders)
    assert isinstance(said[0], SliceReleased)
    assert [(said[0].grant_id, said[0].reason)] == [("g-a", "GPU G0 is no longer on its node")]
    assert "g-a" in core.released
    assert released(core.handle(m.Tick(), AFTER_S + 2.0)) == []


def test_a_gpu_that_comes_back_in_time_keeps_its_grants() -> None:
    core = agent(grant("a"), REPLACED)
    core.handle(m.Tick(), 0.0)
    core.handle(inventory("boot-2"), 1.0)
    core.handle(m.Tick(), AFTER_S)
    core.handle(REPLACED, AFTER_S)
    assert released(core.handle(m.Tick(), AFTER_S + 1.0)) == [], "it is gone since then alone"
    assert released(core.handle(m.Tick(), 2 * AFTER_S + 1.0)) == ["g-a"]


def test_without_any_gpu_nothing_is_given_back() -> None:
    """The driver may not be loaded yet."""
    assert given_back(agent(grant("a"), inventory("boot-2", ()))) == []


def test_what_runs_keeps_its_grant() -> None:
    """A GPU that vanishes under a container is its health's affair, and a process may still have it."""
    core = agent(grant("a"), start("a"), inventory(gpus=("G1",)))
    assert given_back(core) == []
    core.handle(ended("a"), AFTER_S)
    core.handle(m.Tick(), AFTER_S + 1.0)
    assert released(core.handle(m.Tick(), 2 * AFTER_S)) == []
    assert released(core.handle(m.Tick(), 2 * AFTER_S + 1.0)) == ["g-a"]


MIG = MigInstance(profile="3g.40gb", start=4, uuid="MIG-1")
OTHER = MigInstance(profile="1g.10gb", start=0, uuid="MIG-2")
SHARE = GpuShare(node=NODE, uuid="G0", memory_mib=400, compute_milli=0, mig=MIG)


def on_mig(share: GpuShare) -> NodeGrant:
    made = Grant(grant_id="g-a", term=1, containers={"main": ContainerGrant(strategy="mig", gpus=(share,))})
    return NodeGrant(term=1, uid="u-a", namespace="ns", name="a", grant=made)


@pytest.mark.parametrize(
    ("gpu", "share", "why"),
    [
        ({}, SHARE, "the MIG mode of GPU G0 was changed"),
        ({"mig_enabled": True, "mig_instances": (OTHER,)}, SHARE, "GPU G0 no longer has the MIG instance"),
        ({"mig_enabled": True}, SHARE, ""),
        ({"mig_enabled": True, "mig_instances": (MIG,)}, SHARE, ""),
        ({"mig_enabled": True}, msgspec.structs.replace(SHARE, mig=msgspec.structs.replace(MIG, uuid="")), ""),
        ({"state": "unhealthy", "reason": "Xid 79"}, msgspec.structs.replace(SHARE, mig=None), ""),
    ],
    ids=["mode", "instance", "no layout yet", "there", "on demand, and not now", "unhealthy"],
)
def test_what_no_waiting_ends_is_given_back(gpu: dict[str, Any], share: GpuShare, why: str) -> None:
    core = agent(m.GrantReceived(on_mig(share)), inventory("boot-2", **gpu))
    core.handle(m.Tick(), 0.0)
    said = [e.reason for e in events(core.handle(m.Tick(), AFTER_S)) if isinstance(e, SliceReleased)]
    assert said == ([why] if why else [])


def test_an_instance_that_was_there_in_this_boot_is_gone_also_where_no_other_is_left() -> None:
    """As where all instances of a GPU were the agent's, which end with their pods when the layout is fixed again."""
    without = inventory(mig_enabled=True)
    core = agent(inventory(mig_enabled=True, mig_instances=(MIG,)), m.GrantReceived(on_mig(SHARE)))
    core.handle(m.Tick(), 0.0)
    core.handle(without, 1.0)
    core.handle(m.Tick(), 1.0)
    assert released(core.handle(m.Tick(), AFTER_S)) == []
    assert released(core.handle(m.Tick(), AFTER_S + 1.0)) == ["g-a"]


def test_an_instance_of_an_earlier_boot_may_not_have_been_made_yet() -> None:
    core = agent(inventory(mig_enabled=True, mig_instances=(MIG,)), m.GrantReceived(on_mig(SHARE)))
    core.handle(m.Tick(), 0.0)
    core.handle(inventory("boot-2", mig_enabled=True), 0.0)
    assert given_back(core) == []


@pytest.mark.parametrize(
    "change",
    [{"unbound": True}, {"remote": RemoteEnd(role="client", peer="n2", address="n2:1")}],
    ids=["of a hold", "on another node"],
)
def test_grants_that_are_not_this_nodes_to_give_back(change: dict[str, Any]) -> None:
    received = msgspec.structs.replace(node_grant("a"), **change)
    assert given_back(agent(m.GrantReceived(received), REPLACED)) == []


def test_a_pod_of_which_something_runs_keeps_its_grant() -> None:
    shares = {
        name: ContainerGrant(strategy="advisory", gpus=(GpuShare(node=NODE, uuid=uuid, memory_mib=9, compute_milli=0),))
        for name, uuid in (("a", "G0"), ("b", "G1"))
    }
    received = NodeGrant(
        term=1, uid="u-p", namespace="ns", name="p", grant=Grant(grant_id="g-p", term=1, containers=shares)
    )
    core = agent(m.GrantReceived(received), m.StartRequested("u-p", "b"), inventory(gpus=("G1",)))
    assert given_back(core) == []


def test_one_whose_memory_is_on_its_way_to_other_gpus_keeps_its_grant() -> None:
    """Its slices are still those of the GPUs before: it resumes, or goes back."""
    here, there = node_grant("a"), node_grant("a", gpu="G8")
    moving = KnownGrant(grant=there, in_force=here.grant)
    core = Agent(NODE, Checkpoint(node=NODE, known=(moving,)))
    core.handle(inventory(), 0.0)
    assert given_back(core) == []
