"""Enrolment of nodes, as far as it does not need an API server: what counts as a wish, and what is left alone."""

from __future__ import annotations

from typing import Any

import pytest

from services.operator import enrolment
from services.operator.objects import Node, NodeMeta, NodeSpec
from shared.model.objects import Taint

MANAGED = Taint(key="kerf.dev/managed", effect="NoSchedule")


def node(labels: dict[str, str], *taints: Taint) -> Node:
    return Node(metadata=NodeMeta(name="n", labels=labels, resource_version="7"), spec=NodeSpec(taints=taints))


ENROLLED = {"kerf.dev/enrolled": "true"}
LEAVING = Taint(key="kerf.dev/leaving", effect="NoSchedule")


def decide(found: Node, grants: int = 0, **rest: Any) -> Any:
    write, notice = enrolment.decide(found, grants, watcher="kerf-watcher", **rest)
    return (write.body if write else None), (notice.reason if notice else "")


@pytest.mark.parametrize(
    ("labels", "wanted"),
    [
        ({}, False),
        ({"kerf.dev/managed": "true"}, True),
        ({"gpushare": "true"}, True),
        ({"kerf.dev/managed": "false", "gpushare": "true"}, False),
        ({"kerf.dev/managed": "yes"}, False),
    ],
)
def test_which_labels_ask_for_kerf(labels: dict[str, str], wanted: bool) -> None:
    assert enrolment.wanted(node(labels)) is wanted


def test_a_node_that_was_never_enrolled_keeps_a_taint_that_a_user_set() -> None:
    """Guides say: taint first, label then."""
    assert decide(node({}, MANAGED)) == (None, "")


def test_an_enrolled_node_that_lost_its_taint_gets_it_back_without_another_event() -> None:
    body, reason = decide(node({"kerf.dev/managed": "true", "kerf.dev/enrolled": "true"}))
    assert body["spec"] == {"taints": [{"key": "kerf.dev/managed", "effect": "NoSchedule"}]}
    assert body["metadata"]["resourceVersion"] == "7"
    assert reason == ""


def test_a_node_that_returns_while_it_is_leaving_takes_new_pods_again() -> None:
    body, _ = decide(node({"kerf.dev/managed": "true", "kerf.dev/enrolled": "true"}, MANAGED, LEAVING), 2)
    assert body["spec"] == {"taints": [{"key": "kerf.dev/managed", "effect": "NoSchedule"}]}


def test_values_and_other_effects_of_taints_stay() -> None:
    theirs = (Taint(key="a", value="b", effect="NoExecute"), Taint(key="kerf.dev/managed", effect="NoExecute"))
    body, _ = decide(node({}, MANAGED, LEAVING, *theirs))
    assert body["spec"]["taints"] == [
        {"key": "a", "effect": "NoExecute", "value": "b"},
        {"key": "kerf.dev/managed", "effect": "NoExecute"},
    ]


def test_a_node_keeps_its_agent_while_pods_with_grants_run_there() -> None:
    body, reason = decide(node(ENROLLED, MANAGED), 1)
    assert (body["metadata"]["labels"], reason) == ({}, "LeavingKerf")
    assert {taint["key"] for taint in body["spec"]["taints"]} == {"kerf.dev/managed", "kerf.dev/leaving"}
    assert decide(node(ENROLLED, MANAGED, LEAVING), 1) == (None, "")


def test_a_node_leaves_in_steps() -> None:
    """New pods are kept away before the agent ends, and the GPUs are free for others after it has ended."""
    body, reason = decide(node(ENROLLED, MANAGED), agents=1)
    assert (body["metadata"]["labels"], reason) == ({}, "LeavingKerf"), "no pod with a grant is there, and one may come"
    assert {taint["key"] for taint in body["spec"]["taints"]} == {"kerf.dev/managed", "kerf.dev/leaving"}
    leaving = node(ENROLLED, MANAGED, LEAVING)
    assert decide(leaving, agents=1, settled=False) == (None, "")
    body, reason = decide(leaving, agents=1)
    assert (body["metadata"]["labels"], "spec" in body, reason) == ({"kerf.dev/enrolled": None}, False, "")
    dismissed = node({}, MANAGED, LEAVING)
    assert decide(dismissed, agents=1) == (None, "")
    body, reason = decide(dismissed)
    assert (body["metadata"]["labels"], body["spec"], reason) == ({}, {"taints": None}, "LeftKerf")


def test_a_pod_that_is_bound_late_gets_the_agent_back() -> None:
    body, _ = decide(node({}, MANAGED, LEAVING), 1)
    assert (body["metadata"]["labels"], "spec" in body) == ({"kerf.dev/enrolled": "true"}, False)


def test_a_node_that_leaves_loses_the_taint_for_autoscalers_as_well() -> None:
    """Other schedulers would keep off it, and after an uninstallation nothing would take it away."""
    no_room = Taint(key="status-taint.cluster-autoscaler.kubernetes.io/kerf-no-room", effect="NoSchedule")
    left = node({}, MANAGED, LEAVING, no_room)
    assert decide(left)[0]["spec"] == {"taints": None}
    write = enrolment.release_for_good(node({}, no_room), "kerf-watcher")
    assert write is not None
    assert write.body["spec"] == {"taints": None}
