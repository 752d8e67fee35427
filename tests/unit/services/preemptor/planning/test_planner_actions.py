"""Which action a victim is subjected to: throttled, paused, checkpointed or evicted."""

from __future__ import annotations

import pytest

from services.preemptor import messages as m
from shared.model.suspension import Suspension, encode_suspension
from tests.support.harness.preemptor import Preemptor
from tests.unit.services.preemptor.planning.objects import gang


def soft(
    preemptor: Preemptor, name: str, node: str = "n", gpu: int = 0, *, gib: int = 20, milli: int = 500, **rest: object
) -> None:
    """A slice with enforced limits, which can be throttled and paused."""
    preemptor.run(name, node, gpu, memory_mib=gib * 1_024, compute_milli=milli, strategy="interposer", **rest)


def asks(gib: int, percent: int) -> dict[str, object]:
    return {"gpus": 0, "memory": f"{gib}Gi", "compute": percent}


def actions(preemptor: Preemptor) -> list[tuple[str, str]]:
    (plan,) = preemptor.plans()
    return sorted((victim.name, victim.action) for victim in plan.victims)


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        pytest.param(asks(20, 40), [("b", "throttle")], id="compute alone is lacking: one is throttled"),
        pytest.param(asks(20, 90), [("a", "throttle"), ("b", "throttle")], id="both"),
        pytest.param(asks(20, 95), [("a", "pause"), ("b", "pause")], id="to the last per cent: both pause"),
        pytest.param(asks(60, 10), [("b", "evict")], id="memory is lacking: nothing but an end gives it back"),
    ],
)
def test_the_least_severe_sufficient_action_is_chosen(
    wanted: dict[str, object], expected: list[tuple[str, str]]
) -> None:
    preemptor = Preemptor("n", gpus=1)
    soft(preemptor, "a", ran_s=100)
    soft(preemptor, "b", ran_s=50)
    preemptor.wait("high", **wanted)  # type: ignore[arg-type]
    assert actions(preemptor) == expected


def test_throttling_on_one_node_precedes_a_cheap_eviction_on_another() -> None:
    preemptor = Preemptor("a", "b", gpus=1)
    soft(preemptor, "soft", "a", milli=1_000, ran_s=90_000)
    preemptor.run("cheap", "b", 0, ran_s=1)
    preemptor.wait("high", **asks(20, 50))  # type: ignore[arg-type]
    assert actions(preemptor) == [("soft", "throttle")]


def test_a_gang_stops_with_its_suspended_member() -> None:
    preemptor = Preemptor("a", "b", "c", gpus=1)
    soft(preemptor, "g-0", "a", milli=1_000, ran_s=50, **gang("g", 2))
    soft(preemptor, "g-1", "b", milli=1_000, ran_s=50, **gang("g", 2))
    soft(preemptor, "alone", "c", milli=1_000, ran_s=5_000)
    preemptor.wait("high", **asks(20, 50))  # type: ignore[arg-type]
    assert actions(preemptor) == [("alone", "throttle")], "the gang has as much again"


def test_a_gang_stops_once_with_several_suspended_members() -> None:
    preemptor = Preemptor("a", "b", gpus=1)
    for name in ("g-0", "g-1"):
        soft(preemptor, name, "a", ran_s=50, **gang("g", 2))
    for name in ("x", "y"):
        soft(preemptor, name, "b", ran_s=5_000)
    preemptor.wait("high", **asks(20, 90))  # type: ignore[arg-type]
    assert actions(preemptor) == [("g-0", "throttle"), ("g-1", "throttle")], "as much, and newer"


def test_a_suspended_pod_is_not_suspended_again_and_may_be_evicted() -> None:
    preemptor = Preemptor("n", gpus=1)
    soft(preemptor, "low", milli=1_000, gib=40, annotations={"kerf.dev/suspended": '{"action":"pause","plan_id":"p"}'})
    soft(preemptor, "first", milli=1_000, gib=20, priority=100)
    preemptor.wait("high", **asks(40, 10), priority=50)  # type: ignore[arg-type]
    assert preemptor.victims() == [], "it is suspended already, and no pod of lower priority has the compute"
    preemptor.wait("other", **asks(60, 0), priority=50)  # type: ignore[arg-type]
    assert actions(preemptor) == [("low", "evict")]


def test_throttling_one_member_leaves_the_gang_running() -> None:
    preemptor = Preemptor("a", "b", gpus=1)
    soft(preemptor, "g-0", "a", milli=1_000, **gang("g", 2))
    soft(preemptor, "g-1", "b", milli=1_000, **gang("g", 2))
    preemptor.wait("high", **asks(20, 50))  # type: ignore[arg-type]
    assert len(actions(preemptor)) == 1


def test_a_plan_that_only_suspends_evicts_no_pod() -> None:
    preemptor = Preemptor("n", gpus=1)
    soft(preemptor, "low", milli=1_000)
    preemptor.wait("high", **asks(20, 50))  # type: ignore[arg-type]
    (plan,) = preemptor.plans()
    assert (plan.price_gpu_seconds, plan.victims[0].keeps_milli) == (0, 100)
    assert preemptor.reserve(plan) == []
    assert (
        preemptor.core.dry_run("team", "high", preemptor.now).sentence
        == "1 pod would be throttled for a while and lose nothing but time: this plan is in progress"
    )


def test_pods_are_checkpointed_if_the_setting_allows_it() -> None:
    preemptor = Preemptor("n", gpus=1, checkpoints=True)
    soft(preemptor, "low", gib=60, milli=500)
    preemptor.wait("high", **asks(60, 20))  # type: ignore[arg-type]
    assert actions(preemptor) == [("low", "checkpoint")]


def test_no_pod_is_checkpointed_to_a_full_host() -> None:
    preemptor = Preemptor("n", gpus=1, checkpoints=True, park_mib=60 * 1024 - 1)
    soft(preemptor, "low", gib=60, milli=500)
    preemptor.wait("high", **asks(60, 20))  # type: ignore[arg-type]
    assert actions(preemptor) == [("low", "evict")]


def test_a_pod_whose_suspension_failed_may_only_be_evicted() -> None:
    preemptor = Preemptor("n", gpus=1, checkpoints=True)
    soft(preemptor, "low", gib=60, milli=500)
    preemptor.wait("high", **asks(60, 20))  # type: ignore[arg-type]
    (plan,) = preemptor.plans()
    preemptor.reserve(plan)
    preemptor.send(m.Ended(plan.plan_id, executed=False, failed=("uid-team-low",)))
    assert actions(preemptor) == [("low", "evict")]


def test_a_pod_whose_checkpoint_failed_may_still_be_throttled() -> None:
    preemptor = Preemptor("n", gpus=1, checkpoints=True)
    soft(preemptor, "low", gib=60, milli=500)
    preemptor.wait("high", **asks(60, 20))  # type: ignore[arg-type]
    (plan,) = preemptor.plans()
    preemptor.reserve(plan)
    preemptor.gone("high")
    preemptor.send(m.Ended(plan.plan_id, executed=False, failed=("uid-team-low",)))
    preemptor.wait("next", **asks(10, 80))  # type: ignore[arg-type]
    assert actions(preemptor) == [("low", "throttle")]


def test_a_throttled_pod_is_no_cheaper_to_evict() -> None:
    """It has done as much work as before it was throttled."""
    preemptor = Preemptor("a", "b", gpus=1)
    suspension = encode_suspension(Suspension(action="throttle", plan_id="before", compute_milli=100))
    preemptor.run(
        "throttled",
        "a",
        0,
        memory_mib=8_192,
        compute_milli=1000,
        strategy="interposer",
        ran_s=1_000,
        annotations={"kerf.dev/suspended": suspension},
    )
    preemptor.run("young", "b", 0, ran_s=500)
    preemptor.wait("high")
    (plan,) = preemptor.plans()
    assert [(victim.name, victim.lost_gpu_seconds) for victim in plan.victims] == [("young", 501)]
