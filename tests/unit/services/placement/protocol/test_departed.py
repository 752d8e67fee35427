"""Nodes that never come back are forgotten, and no others."""

from __future__ import annotations

import pytest

from services.placement import messages as m
from services.placement.protocol.departed import FORGET_AFTER_S, LOOK_S
from tests.support import build
from tests.support.harness.placement import Placement, only


def passed(placement: Placement, seconds: float, *beats: str) -> list[str]:
    """The nodes that are forgotten meanwhile. `beats`: those whose agents are alive."""
    said: list[m.Command] = []
    for _ in range(round(seconds / LOOK_S)):
        placement.now += LOOK_S
        said += placement.send(m.BeatSeen(beats)) + placement.send(m.Tick(placement.now))
    return [command.node for command in only(said, m.ForgetNode)]


@pytest.fixture
def gone() -> Placement:
    """The Node object `n` has been deleted; its agent and `other`'s were heard just before."""
    placement = Placement().nodes("n", "other", gpus=1)
    placement.send(m.BeatSeen(("n", "other")))
    placement.gone(build.node("n"))
    return placement


def test_a_node_that_has_been_gone_for_long_is_forgotten(gone: Placement) -> None:
    assert passed(gone, FORGET_AFTER_S - LOOK_S, "other") == []
    assert passed(gone, 2 * LOOK_S, "other")[0] == "n"
    gone.send(m.AgentLost("n"))
    assert "n" not in gone.core.book.nodes
    assert passed(gone, 2 * FORGET_AFTER_S, "other") == []


def test_a_node_that_is_not_forgotten_yet_is_named_again(gone: Placement) -> None:
    passed(gone, FORGET_AFTER_S + LOOK_S, "other")
    assert passed(gone, 3 * LOOK_S, "other") == ["n"] * 3


def test_a_node_whose_agent_speaks_is_kept(gone: Placement) -> None:
    assert passed(gone, 2 * FORGET_AFTER_S, "n", "other") == []


def test_a_node_that_came_back_begins_anew(gone: Placement) -> None:
    passed(gone, FORGET_AFTER_S - LOOK_S, "other")
    gone.facts(build.node("n"))
    assert passed(gone, 2 * LOOK_S, "other") == []
    gone.gone(build.node("n"))
    assert passed(gone, FORGET_AFTER_S - LOOK_S, "other") == []


def test_a_node_is_kept_while_the_api_server_has_a_pod_there() -> None:
    placement = Placement().nodes("n", gpus=1)
    pod = build.gpu_pod("p", gpus=1)
    placement.facts(pod)
    bound = placement.bind(pod)
    placement.facts(bound)
    placement.gone(build.node("n"))
    assert passed(placement, 2 * FORGET_AFTER_S) == []
    placement.gone(bound)
    assert passed(placement, 2 * FORGET_AFTER_S)[:1] == ["n"]
