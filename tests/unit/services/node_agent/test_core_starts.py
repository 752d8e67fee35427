"""How the kubelet's records of a pod affect its start."""

from __future__ import annotations

import msgspec
import pytest

from services.node_agent import messages as m
from services.node_agent.core import Agent
from shared.contracts.node_commands import NodeGrant
from shared.model.grant import ContainerGrant, GpuShare, Grant
from tests.unit.services.node_agent.make import NODE, agent, grant, inventory, node_grant, refusal, release, start, sync


def test_a_start_under_another_pod_name_is_refused() -> None:
    """The UID in the kubelet's checkpoint must be that of the pod which PodResources names."""
    core = agent(grant("a"))
    assert refusal(core.handle(m.StartRequested("u-a", "main", "slot-1", ("ns", "b")), 0.0)) == "another-pod"
    assert core.live() == ()
    assert refusal(core.handle(m.StartRequested("u-a", "main", "slot-1", ("ns", "a")), 0.0)) == ""


def test_a_driver_that_loads_late_after_a_boot_voids_no_grant() -> None:
    core = agent(grant("a"), start("a"), inventory("boot-2", gpus=()))
    assert refusal(core.handle(start("a"), 0.0)) == "no-gpus"
    core.handle(inventory("boot-2", gpus=("G1",)), 0.0)
    assert refusal(core.handle(start("a"), 0.0)) == "gpu-gone", "other GPUs are there, but not this one"
    core.handle(inventory("boot-2"), 0.0)
    assert refusal(core.handle(start("a"), 0.0)) == ""


def test_an_init_container_does_not_change_the_lease_of_its_host_container() -> None:
    core = agent(grant("a"))
    core.handle(m.StartRequested("u-a", "main", "slot-1"), 0.0)
    orders = core.handle(m.StartRequested("u-a", "main"), 0.0)
    assert [type(order) for order in orders] == [m.HandOver], "nothing to save and no new event"


@pytest.mark.parametrize(("named", "chosen"), [("small", "small"), ("", "wide")])
def test_init_containers_run_within_the_share_that_the_grant_names(named: str, chosen: str) -> None:
    """In a grant of an earlier version: that with the most GPUs, then the most memory, of the containers' own."""

    def share(uuid: str, memory: int) -> GpuShare:
        return GpuShare(node=NODE, uuid=uuid, memory_mib=memory, compute_milli=0)

    containers = {
        "small": ContainerGrant(strategy="advisory", gpus=(share("G0", 100),)),
        "wide": ContainerGrant(strategy="advisory", gpus=(share("G0", 50), share("G1", 50))),
        "tall": ContainerGrant(strategy="advisory", gpus=(share("G1", 500),)),
        "claim/c/gpu": ContainerGrant(strategy="advisory", gpus=(share("G0", 900), share("G1", 900)), claim="claim-1"),
    }
    made = Grant(grant_id="g-a", term=1, containers=containers, init_share=named)
    core = agent(m.GrantReceived(NodeGrant(term=1, uid="u-a", namespace="ns", name="a", grant=made)))
    assert (core.store.init_share("u-a"), core.store.init_share("u-unknown")) == (chosen, "")


def test_a_reused_claim_belongs_to_the_pod_of_the_newest_grant() -> None:
    """Even if the release of the earlier grant was not received: it is still known, and must not be handed over."""

    def find_claim(name: str) -> m.GrantReceived:
        share = GpuShare(node=NODE, uuid="G0", memory_mib=100, compute_milli=0)
        part = ContainerGrant(strategy="advisory", gpus=(share,), claim="claim-1")
        return m.GrantReceived(
            NodeGrant(
                term=1,
                uid=f"u-{name}",
                namespace="ns",
                name=name,
                grant=Grant(grant_id=f"g-{name}", term=1, containers={"claim/c/gpu": part}),
            )
        )

    core = agent(find_claim("a"), m.StartRequested("u-a", "claim/c/gpu"), find_claim("b"))
    assert core.store.find_by_claim("claim-1") == ("u-b", ("claim/c/gpu",))
    core.handle(m.StartRequested("u-b", "claim/c/gpu"), 0.0)
    core.handle(release("b"), 0.0)
    assert core.store.find_by_claim("claim-1") == ("u-a", ("claim/c/gpu",)), "a releasing grant comes last"


def test_a_pod_that_was_seen_bound_starts_by_that_grant_also_after_a_restart() -> None:
    """Whatever else was decided for it later: a sync names both until that decision is void."""
    bound = node_grant("a")
    decided = msgspec.structs.replace(bound, unbound=True, grant=msgspec.structs.replace(bound.grant, grant_id="g-b"))
    core = agent(m.GrantReceived(bound), sync(bound, decided))
    again = Agent(NODE, core.checkpoint())
    again.handle(inventory(), 0.0)
    assert refusal(again.handle(start("a"), 0.0)) == ""
