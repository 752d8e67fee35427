"""A node may release a grant before the API server says anything of its pod: a plan does not count on it any more."""

from __future__ import annotations

from services.preemptor import messages as m
from tests.support.harness.preemptor import Preemptor


def test_a_released_grant_is_no_candidate_for_suspension() -> None:
    preemptor = Preemptor("n", gpus=1)
    for name, ran_s in (("a", 100), ("b", 50)):
        preemptor.run(name, "n", 0, ran_s=ran_s, memory_mib=20 * 1024, compute_milli=500, strategy="interposer")
    assert preemptor.plans() == []
    preemptor.send(m.GrantOver("grant-b"))
    preemptor.wait("high", gpus=0, memory="20Gi", compute=90)
    assert [victim.name for plan in preemptor.plans() for victim in plan.victims] == ["a"]


def test_a_gang_is_no_victim_while_one_of_its_grants_is_released_and_its_pod_not_seen_to_end() -> None:
    preemptor = Preemptor("n", gpus=1)
    low, high = ({"kerf.dev/gang": name, "kerf.dev/gang-size": "2"} for name in ("low", "high"))
    for name, ran_s in (("a", 10), ("b", 50)):
        preemptor.run(name, "n", 0, ran_s=ran_s, memory_mib=20 * 1024, compute_milli=300, annotations=low)
    assert preemptor.plans() == []
    preemptor.send(m.GrantOver("grant-a"))
    for name in ("x", "y"):
        preemptor.wait(name, gpus=0, memory="30Gi", compute=40, annotations=high)
    assert preemptor.plans() == []
