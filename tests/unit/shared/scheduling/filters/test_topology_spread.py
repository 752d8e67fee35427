"""Topology spread constraints that must hold, case by case."""

from __future__ import annotations

from typing import Any

import pytest

from shared.model.objects import Taint
from tests.support import build
from tests.unit.shared.scheduling.filters.verdict import HOST, ZONE, Spec, db, labelled, pod, verdict


def spread(**rest: Any) -> Spec:
    return {
        "maxSkew": 1,
        "topologyKey": ZONE,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "db"}},
        **rest,
    }


ONE_HERE = [db("a", "n")]
TO_N = {"nodeSelector": {HOST: "n"}}


@pytest.mark.parametrize(
    ("behaviour", "constraint", "spec", "others", "code"),
    [
        ("the fuller domain is closed", spread(), {}, ONE_HERE, "spread"),
        ("maxSkew widens it", spread(maxSkew=2), {}, ONE_HERE, ""),
        ("ScheduleAnyway is a preference", spread(whenUnsatisfiable="ScheduleAnyway"), {}, ONE_HERE, ""),
        ("even domains are open", spread(), {}, [db("a", "n"), db("b", "o")], ""),
        ("other pods do not count", spread(), {}, [pod("a", on="n", labels={"app": "web"})], ""),
        ("pods of other namespaces do not count", spread(), {}, [db("a", "n", namespace="red")], ""),
        (
            "a pod that is going does not count",
            spread(),
            {},
            [build.newer(db("a", "n"), deletion_timestamp="2026-11-21T00:00:00Z")],
            "",
        ),
        ("the node needs the key", spread(topologyKey="rack"), {}, [], "spread-no-key"),
        ("too few domains make the least 0", spread(minDomains=3), {}, [db("a", "n"), db("b", "o")], "spread"),
        ("domains that the pod cannot reach do not count", spread(), TO_N, ONE_HERE, ""),
        ("unless it says so", spread(nodeAffinityPolicy="Ignore"), TO_N, ONE_HERE, "spread"),
        (
            "tainted nodes count",
            spread(),
            {},
            [
                *ONE_HERE,
                build.node("t", labels={ZONE: "c"}, taints=(Taint(key="x", effect="NoSchedule"),)),
                db("b", "o"),
            ],
            "spread",
        ),
        (
            "unless it says so",
            spread(nodeTaintsPolicy="Honor"),
            {},
            [
                *ONE_HERE,
                build.node("t", labels={ZONE: "c"}, taints=(Taint(key="x", effect="NoSchedule"),)),
                db("b", "o"),
            ],
            "",
        ),
        (
            "matchLabelKeys count the pod's own revision",
            spread(matchLabelKeys=["rev"]),
            {},
            [pod("a", on="n", labels={"app": "db", "rev": "1"})],
            "",
        ),
        ("an empty selector counts no pod", spread(labelSelector={}), {}, ONE_HERE, ""),
    ],
)
def test_topology_spread(behaviour: str, constraint: Spec, spec: Spec, others: list[Any], code: str) -> None:
    asked = pod(labels={"app": "db", "rev": "2"}, topologySpreadConstraints=[constraint], **spec)
    assert verdict(asked, *others) == code, behaviour


def test_all_constraints_hold_and_domains_are_those_of_nodes_with_all_keys() -> None:
    both = [spread(), spread(topologyKey="rack")]
    assert verdict(pod(labels={"app": "db"}, topologySpreadConstraints=both)) == "spread-no-key"
    assert (
        verdict(pod(labels={"app": "db"}, topologySpreadConstraints=both), db("a", "n"), node=labelled(rack="r1")) == ""
    )
