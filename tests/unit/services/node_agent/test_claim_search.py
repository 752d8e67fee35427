"""Which pod a ResourceClaim is prepared for, where pods use it one after the other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from services.node_agent import messages as m
from services.node_agent.claim_search import ClaimSearch
from services.node_agent.processes.pod_cgroups import PodCgroups
from shared.contracts.node_commands import NodeGrant, NodeRelease
from shared.model.grant import ContainerGrant, GpuShare, Grant
from tests.unit.services.node_agent.make import NODE, agent, grant

ENTRIES = ("claim/c/gpu",)
UIDS = {name: f"3f0c9b1e-7a55-4c1b-9a43-2f6f0f3a8d{number}" for name, number in (("a", 10), ("b", 11))}


def granted(name: str) -> m.GrantReceived:
    share = GpuShare(node=NODE, uuid="G0", memory_mib=100, compute_milli=0)
    part = ContainerGrant(strategy="advisory", gpus=(share,), claim="claim-1")
    grant = Grant(grant_id=f"g-{name}", term=1, containers={ENTRIES[0]: part})
    return m.GrantReceived(NodeGrant(term=1, uid=UIDS[name], namespace="ns", name=name, grant=grant))


class Node:
    """A node with pods' cgroups, whose agent knows the grant of `a`, and has handed its claim over."""

    def __init__(self, folder: Path) -> None:
        self.core = agent(granted("a"), m.StartRequested(UIDS["a"], ENTRIES[0]))
        self.comes: m.Input | None = None
        """What the agent is told while it waits."""
        self.waits = 0
        self._kubepods = folder / "kubepods"
        folder.joinpath("cgroup.procs").touch()
        self._search = ClaimSearch(self.core.store, self, PodCgroups(folder))  # type: ignore[arg-type]

    async def until(self, find: Callable[[], Any], *, claim: str) -> Any:
        self.waits += 1
        if self.comes is not None:
            self.core.handle(self.comes, 0.0)
        return find()

    def has(self, *pods: str) -> None:
        self._kubepods.mkdir()
        for name in pods:
            (self._kubepods / f"pod{UIDS[name]}").mkdir()

    async def find(self) -> str:
        """The pod's name; empty if there is none."""
        found = await self._search.find("claim-1")
        return "" if found is None else next(name for name, uid in UIDS.items() if found == (uid, ENTRIES))


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


async def test_a_pod_that_is_there_is_found_at_once(node: Node) -> None:
    node.has("a")
    assert (await node.find(), node.waits) == ("a", 0)


async def test_the_claim_of_a_pod_that_has_ended_is_the_next_ones(node: Node) -> None:
    """Its release was lost, so its grant is known and not being released. The next pod must not get its GPU."""
    node.has("b")
    node.comes = granted("b")
    assert (await node.find(), node.waits) == ("b", 1)


async def test_without_the_next_ones_grant_nothing_is_found(node: Node) -> None:
    node.has("b")
    assert await node.find() == ""


async def test_a_grant_that_is_being_released_is_waited_out(node: Node) -> None:
    node.has("a", "b")
    node.core.handle(m.ReleaseReceived(NodeRelease(term=1, uid=UIDS["a"], grant_id="g-a")), 0.0)
    node.comes = granted("b")
    assert await node.find() == "b"


async def test_where_no_other_comes_the_one_that_is_being_released_is_named(node: Node) -> None:
    """So that the refusal says why."""
    node.has("a")
    node.core.handle(m.ReleaseReceived(NodeRelease(term=1, uid=UIDS["a"], grant_id="g-a")), 0.0)
    assert (await node.find(), node.waits) == ("a", 1)


async def test_without_cgroups_of_pods_the_newest_grant_counts(node: Node) -> None:
    """The kubelet makes none where `cgroupsPerQOS` is off."""
    node.core.handle(granted("b"), 0.0)
    assert (await node.find(), node.waits) == ("b", 0)


async def test_only_pods_with_the_claim_are_looked_for(node: Node) -> None:
    """Of one without a cgroup, as just bound or ended, all cgroups of the node are read."""
    node.has("a")
    node.core.handle(grant("other", gpu="G1"), 0.0)
    looked_for: list[str] = []
    found = node.core.store.find_by_claim("claim-1", lambda known: not looked_for.append(known.grant.name))
    assert (found, looked_for) == ((UIDS["a"], ENTRIES), ["a"])
