"""Which turns the preemptor proposes, for whom, when, and at what cost."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from services.preemptor import messages as m
from services.preemptor.turns.circles import Circles
from services.preemptor.turns.planner import REFUSED_S
from shared.contracts.facts import Put
from shared.contracts.preemption import Plan, Reserved
from shared.model import names
from shared.model.suspension import Suspension, encode_suspension
from shared.queues.turns import TurnPolicy, WatchdogLoad
from shared.turns.gpu_time import GpuTime, encode_gpu_time
from shared.turns.rules import TurnRules
from tests.support import build
from tests.support.harness.preemptor import NOW, TOTAL_MIB, Preemptor

ALLOWED = {names.ANNOTATION_TURNS: "allowed"}
LONG_S = 30_000
RULES = TurnRules()


class Site(Preemptor):
    """Pods have or want one GPU, all of it as a slice, and take turns."""

    def runs(self, name: str, node: str, gpu: int, *, ran_s: int = LONG_S, mib: int = TOTAL_MIB, **rest: Any) -> None:
        notes = ALLOWED | rest.pop("annotations", {})
        share: dict[str, Any] = {"memory_mib": mib, "compute_milli": 1000, "strategy": "interposer"} | rest
        self.run(name, node, gpu, ran_s=ran_s, annotations=notes, **share)

    def waits(self, name: str, *, mib: int = TOTAL_MIB, **rest: Any) -> None:
        notes = ALLOWED | rest.pop("annotations", {})
        created = datetime.fromtimestamp(self.now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        asks: dict[str, Any] = {"memory": f"{mib}Mi", "compute": 100, "priority": 0, "created": created} | rest
        self.wait(name, annotations=notes, **asks)

    def suspended(self, name: str, node: str, gpu: int, *, since_s: float = 60, had_s: int = 0, **rest: Any) -> None:
        record = GpuTime(since=self.now - since_s, attained_gpu_ms=1000 * had_s, turns=1)
        notes = {
            names.ANNOTATION_SUSPENDED: encode_suspension(Suspension(action="checkpoint", plan_id="old")),
            names.ANNOTATION_GPU_TIME: encode_gpu_time(record),
        }
        self.runs(name, node, gpu, annotations=notes | rest.pop("annotations", {}), **rest)

    def idle(self, *names_: str, woken: dict[str, float] | None = None, park_mib: int = 8 * TOTAL_MIB) -> None:
        """Node a says which of its pods are idle; `woken`: by pod, since when suspended ones want the GPU."""
        self.said = getattr(self, "said", 1) + 1
        seen = build.inventory("a", gpus=self.gpus, park_mib=park_mib, generation=self.said)
        grants = {f"grant-{name}": self.now - 600 for name in names_}
        awake = {f"grant-{name}": at for name, at in (woken or {}).items()}
        self.send(m.InventorySeen(msgspec.structs.replace(seen, idle_grants=grants, woken_grants=awake)))

    def turns(self, after_s: float = 2.0) -> list[Plan]:
        return self.plans(after_s)


def victims(plan: Plan) -> list[tuple[str, str]]:
    return sorted((victim.name, victim.action) for victim in plan.victims)


def gang(name: str, size: int) -> dict[str, str]:
    return {names.ANNOTATION_GANG: name, names.ANNOTATION_GANG_SIZE: str(size)}


@pytest.fixture
def site() -> Site:
    made = Site("a", gpus=2)
    made.runs("long", "a", 0)
    made.runs("longer", "a", 1, ran_s=10 * LONG_S)
    return made


def test_a_new_job_takes_the_turn_of_the_one_of_the_highest_level(site: Site) -> None:
    site.waits("new")
    [plan] = site.turns()
    assert victims(plan) == [("longer", "checkpoint")]
    assert (plan.turn, plan.price_gpu_seconds) == (True, 0)
    assert [(one.name, one.node, one.resumes) for one in plan.beneficiaries] == [("new", "a", False)]
    assert site.turns() == [], "it is planned for already"


def test_nothing_is_planned_for_a_job_of_the_same_level_until_a_running_one_falls() -> None:
    site = Site("a", gpus=1)
    site.runs("young", "a", 0, ran_s=500)
    site.waits("new")
    assert site.turns() == []
    assert site.turns(96) == []
    assert [victims(plan) for plan in site.turns(4)] == [[("young", "checkpoint")]]


def test_a_turn_lasts_for_its_minimum() -> None:
    site = Site("a", gpus=1)
    record = GpuTime(since=NOW - 60, attained_gpu_ms=LONG_S * 1000, turns=1)
    site.runs("back", "a", 0, annotations={names.ANNOTATION_GPU_TIME: encode_gpu_time(record)})
    site.waits("new")
    assert site.turns(RULES.min_turn_s - 65) == []
    assert len(site.turns(10)) == 1


def test_an_overdue_job_ends_the_turn_of_an_equal_one() -> None:
    site = Site("a", gpus=1)
    site.runs("long", "a", 0)
    site.suspended("other", "a", 0, had_s=LONG_S, since_s=RULES.max_wait_s - 30)
    assert site.turns() == []
    assert [victims(plan) for plan in site.turns(30)] == [[("long", "checkpoint")]]


@pytest.mark.parametrize(
    "rest",
    [
        {"annotations": {names.ANNOTATION_TURNS: "never"}},
        {"annotations": {names.ANNOTATION_PREEMPTIBLE: "false"}},
        {"strategy": "advisory"},
        {"priority": 5},
    ],
)
def test_a_pod_that_takes_no_turns_with_it_never_yields(rest: dict[str, Any]) -> None:
    site = Site("a", gpus=1)
    site.runs("long", "a", 0, **rest)
    site.waits("new")
    assert site.turns() == []


def test_a_pod_of_lower_priority_is_preempted_before_an_equal_yields() -> None:
    site = Site("a", gpus=2)
    site.runs("equal", "a", 0, priority=5)
    site.run("low", "a", 1)
    site.waits("new", priority=5)
    [plan] = site.turns()
    assert (victims(plan), plan.turn) == ([("low", "evict")], False)


def test_memory_that_fits_beside_stays_on_the_gpu() -> None:
    site = Site("a", gpus=1)
    site.runs("long", "a", 0, mib=TOTAL_MIB // 2)
    site.waits("new", mib=TOTAL_MIB // 2)
    assert [victims(plan) for plan in site.turns()] == [[("long", "pause")]]


PAUSED = {names.ANNOTATION_SUSPENDED: encode_suspension(Suspension(action="pause", plan_id="old"))}


def in_the_way(waits_s: float, *, gpus: int = 1, park_mib: int = 4 * TOTAL_MIB) -> Site:
    """A job that needs the whole GPU has waited for so long. Two small ones run there in turn, and their memory fits
    beside."""
    site = Site("a", gpus=gpus, park_mib=park_mib)
    site.suspended("whole", "a", 0, since_s=waits_s)
    site.suspended("next", "a", 0, mib=TOTAL_MIB // 4, annotations=PAUSED)
    site.runs("now", "a", 0, mib=TOTAL_MIB // 4)
    return site


def test_jobs_are_not_paused_in_the_way_of_an_overdue_one() -> None:
    """Else one of them is always paused on the GPU, and the overdue one never has all of it."""
    (plan,) = in_the_way(waits_s=60).turns()
    assert ([one.name for one in plan.beneficiaries], victims(plan)) == (["next"], [("now", "pause")])
    (plan,) = in_the_way(waits_s=RULES.max_wait_s + 60).turns()
    assert ([one.name for one in plan.beneficiaries], victims(plan)) == (["next"], [("now", "checkpoint")])


def test_an_overdue_job_that_would_not_fit_anyhow_has_no_job_checkpointed() -> None:
    site = in_the_way(waits_s=RULES.max_wait_s + 60)
    site.run("stays", "a", 0, ran_s=LONG_S, memory_mib=TOTAL_MIB // 4, compute_milli=0, strategy="interposer")
    (plan,) = site.turns()
    assert victims(plan) == [("now", "pause")]


def test_jobs_in_the_way_are_paused_where_the_host_has_no_room_for_all_of_them() -> None:
    site = in_the_way(waits_s=RULES.max_wait_s + 60, park_mib=TOTAL_MIB + TOTAL_MIB // 4)
    (plan,) = site.turns()
    assert victims(plan) == [("now", "pause")]


def test_a_job_that_waits_for_room_on_the_host_has_none_checkpointed() -> None:
    """It needs the GPU of a large job, for which the host has no room while it has that of a small one."""
    site = Site("a", gpus=2, park_mib=2 * TOTAL_MIB)
    site.suspended("whole", "a", 0, since_s=RULES.max_wait_s + 60)
    site.runs("big", "a", 0)
    site.suspended("away", "a", 1, mib=TOTAL_MIB // 4, since_s=500)
    site.suspended("paused", "a", 1, mib=TOTAL_MIB // 4, since_s=400, annotations=PAUSED)
    site.runs("now", "a", 1, mib=TOTAL_MIB // 4)
    (plan,) = site.turns()
    assert victims(plan) == [("now", "pause")]


def test_jobs_on_another_gpu_of_the_node_are_paused_as_ever() -> None:
    site = in_the_way(waits_s=RULES.max_wait_s + 60, gpus=2)
    site.suspended("other-next", "a", 1, mib=TOTAL_MIB // 4, since_s=600, annotations=PAUSED)
    site.runs("other-now", "a", 1, mib=TOTAL_MIB // 4)
    (plan,) = site.turns()
    assert victims(plan) == [("other-now", "pause")]


def test_a_job_that_is_due_back_does_not_leave_another_in_the_way_of_an_overdue_one() -> None:
    """It is served before the overdue one."""
    watched = {names.ANNOTATION_WATCHDOG: "10m"}
    site = Site("a", gpus=1, park_mib=4 * TOTAL_MIB)
    site.suspended("whole", "a", 0, since_s=RULES.max_wait_s + 60)
    site.suspended("next", "a", 0, mib=TOTAL_MIB // 4, since_s=400, annotations=PAUSED | watched)
    site.runs("now", "a", 0, mib=TOTAL_MIB // 4, annotations=watched)
    (plan,) = site.turns()
    assert ([one.name for one in plan.beneficiaries], victims(plan)) == (["next"], [("now", "checkpoint")])


def test_a_full_host_takes_no_memory_and_the_job_with_the_least_is_asked() -> None:
    site = Site("a", gpus=2, park_mib=TOTAL_MIB // 2)
    site.runs("long", "a", 0)
    site.waits("new", mib=TOTAL_MIB // 2)
    assert site.turns() == []
    site.runs("small", "a", 1, mib=TOTAL_MIB // 2, compute_milli=500)
    site.runs("smaller", "a", 1, mib=TOTAL_MIB // 2 - 1000, compute_milli=500)
    site.waits("newer", mib=TOTAL_MIB // 2, compute=50)
    assert [victims(plan) for plan in site.turns(31)] == [[("smaller", "checkpoint")]]


def test_the_host_is_not_promised_twice() -> None:
    site = Site("a", "b", gpus=1, park_mib=TOTAL_MIB)
    site.runs("long-a", "a", 0)
    site.suspended("parked", "a", 0, had_s=10 * LONG_S)
    site.runs("long-b", "b", 0)
    site.waits("new")
    assert [plan.beneficiaries[0].node for plan in site.turns()] == ["b"]


def test_only_as_many_yield_as_are_needed() -> None:
    site = Site("a", gpus=2)
    for gpu in (0, 1):
        site.runs(f"half-{gpu}", "a", gpu, mib=TOTAL_MIB // 2, compute_milli=500)
        site.runs(f"other-{gpu}", "a", gpu, mib=TOTAL_MIB // 2, compute_milli=500, ran_s=2 * LONG_S)
    site.waits("new", mib=TOTAL_MIB // 2, compute=50)
    assert [victims(plan) for plan in site.turns()] == [[("other-0", "checkpoint")]]


def test_a_gang_gets_places_on_several_nodes_or_none() -> None:
    site = Site("a", "b", gpus=1)
    site.runs("long", "a", 0)
    site.runs("young", "b", 0, ran_s=10)
    for member in ("g-0", "g-1"):
        site.waits(member, annotations=gang("g", 2))
    assert site.turns() == []
    [plan] = site.turns(600)
    assert victims(plan) == [("long", "checkpoint"), ("young", "checkpoint")]
    assert sorted((one.name, one.node) for one in plan.beneficiaries) in (
        [("g-0", "a"), ("g-1", "b")],
        [("g-0", "b"), ("g-1", "a")],
    )


def test_a_gang_yields_as_a_whole() -> None:
    site = Site("a", "b", gpus=1)
    site.runs("g-0", "a", 0, annotations=gang("g", 2))
    site.runs("g-1", "b", 0, annotations=gang("g", 2))
    site.waits("new")
    assert [victims(plan) for plan in site.turns()] == [[("g-0", "checkpoint"), ("g-1", "checkpoint")]]


def test_a_single_pod_yields_rather_than_a_gang() -> None:
    site = Site("a", "b", "c", gpus=1)
    site.runs("g-0", "a", 0, annotations=gang("g", 2), ran_s=9 * LONG_S)
    site.runs("g-1", "b", 0, annotations=gang("g", 2), ran_s=9 * LONG_S)
    site.runs("alone", "c", 0)
    site.waits("new")
    assert [victims(plan) for plan in site.turns()] == [[("alone", "checkpoint")]]


def test_a_suspended_job_comes_back_on_its_own_gpu() -> None:
    site = Site("a", gpus=2)
    site.suspended("short", "a", 0, had_s=10)
    site.runs("on-its-gpu", "a", 0)
    site.runs("elsewhere", "a", 1, ran_s=99 * LONG_S)
    [plan] = site.turns()
    assert victims(plan) == [("on-its-gpu", "checkpoint")]
    assert [(one.name, one.resumes) for one in plan.beneficiaries] == [("short", True)]


def test_a_suspended_gang_comes_back_as_a_whole() -> None:
    site = Site("a", "b", gpus=1)
    site.suspended("g-0", "a", 0, had_s=10, annotations=gang("g", 2))
    site.suspended("g-1", "b", 0, had_s=10, annotations=gang("g", 2))
    site.runs("long-a", "a", 0)
    [plan] = site.turns()
    assert victims(plan) == [("long-a", "checkpoint")]
    assert sorted((one.name, one.node, one.resumes) for one in plan.beneficiaries) == [
        ("g-0", "a", True),
        ("g-1", "b", True),
    ]


def test_no_turn_whose_copies_take_longer_than_it_is_worth() -> None:
    # 80 GiB at 500 MiB/s take 164 s and 1.5 s, in each direction. A new job keeps its turn for 600 s.
    for part, planned in ((0.5, 0), (0.6, 1)):
        site = Site("a", gpus=1, copied_mib_per_s=500, max_copy_part=part)
        site.runs("long", "a", 0)
        site.waits("new")
        assert len(site.turns()) == planned


@pytest.mark.parametrize(
    ("out", "back", "planned"),
    [
        (0, 0, 1),  # as set: 80 GiB at 5 GiB/s take 16 s and 1.5 s, in each direction
        (500, 5_000, 1),  # 164 + 16 s of 300
        (250, 5_000, 0),  # 328 + 16 s
        (5_000, 250, 0),
        (500, 500, 0),
        (549, 549, 1),  # 298.4 s: what a copy takes besides is in what was measured
    ],
)
def test_a_node_that_says_how_fast_it_copies_is_believed(out: int, back: int, planned: int) -> None:
    site = Site("a", gpus=1)
    seen = build.inventory("a", gpus=1, park_mib=8 * TOTAL_MIB, generation=2)
    host = msgspec.structs.replace(seen.host_memory, out_mib_per_s=out, back_mib_per_s=back)
    site.send(m.InventorySeen(msgspec.structs.replace(seen, host_memory=host)))
    site.runs("long", "a", 0)
    site.waits("new")
    assert len(site.turns()) == planned


def test_after_a_failed_suspension_the_pod_is_not_asked_for_a_while(site: Site) -> None:
    site.waits("new")
    [plan] = site.turns()
    site.reserve(plan)
    site.send(m.Ended(plan.plan_id, executed=False, failed=(plan.victims[0].uid,)))
    [again] = site.turns(REFUSED_S + 1)
    assert victims(again) == [("long", "checkpoint")]


@pytest.mark.parametrize("answer", ["refused", "cancelled"])
def test_a_pod_that_cannot_be_checkpointed_may_still_be_paused(answer: str) -> None:
    site = Site("a", gpus=1)
    site.runs("long", "a", 0, mib=TOTAL_MIB // 2)
    site.waits("large")
    [plan] = site.turns()
    assert victims(plan) == [("long", "checkpoint")]
    uids = (plan.victims[0].uid,)
    if answer == "refused":
        site.send(m.Answered(Reserved(plan_id=plan.plan_id, ok=False, reason="no", cannot_suspend=uids)))
    else:
        site.reserve(plan)
        site.send(m.Ended(plan.plan_id, executed=False, failed=uids))
    site.waits("small", mib=TOTAL_MIB // 2)
    [plan] = site.turns()
    assert ([one.name for one in plan.beneficiaries], victims(plan)) == (["small"], [("long", "pause")])


def test_a_refused_job_is_left_alone_for_a_while(site: Site) -> None:
    site.waits("new")
    [plan] = site.turns()
    site.reserve(plan, ok=False)
    assert site.turns(2) == []
    assert len(site.turns(REFUSED_S)) == 1


def test_one_plan_at_a_time_on_a_node(site: Site) -> None:
    site.waits("new")
    site.waits("next")
    [plan] = site.turns()
    assert site.turns() == []
    site.reserve(plan)
    site.send(m.Ended(plan.plan_id, executed=False))
    assert len(site.turns(REFUSED_S + 1)) == 1


def test_turns_can_be_switched_off() -> None:
    site = Site("a", gpus=1, turns=False)
    site.runs("long", "a", 0)
    site.waits("new")
    assert site.turns() == []


def test_running_jobs_are_looked_at_only_when_something_may_have_changed(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0
    running = Circles.running

    def counted(self: Circles, *args: Any) -> Any:
        nonlocal looks
        looks += 1
        return running(self, *args)

    monkeypatch.setattr(Circles, "running", counted)
    site.turns()
    assert looks == 0, "no job waits"
    young = Site("b", gpus=1)
    young.runs("young", "b", 0, ran_s=10)
    young.waits("new")
    young.turns()
    assert looks == 1
    for _ in range(100):
        young.turns(0.1)
    assert looks == 1
    young.waits("newer")
    young.turns()
    assert looks == 2


def moved(plan: Plan) -> dict[str, str]:
    return plan.beneficiaries[0].gpus


def test_a_suspended_job_that_may_move_takes_the_turn_that_costs_least_on_its_node() -> None:
    site = Site("a", gpus=2)
    site.runs("beside", "a", 0, ran_s=10)
    site.runs("long", "a", 1)
    site.suspended("other", "a", 0, any_gpu=True)
    [plan] = site.turns()
    assert victims(plan) == [("long", "checkpoint")]
    assert moved(plan) == {"a-gpu-0": "a-gpu-1"}


def test_its_own_gpu_is_preferred_at_equal_cost() -> None:
    site = Site("a", gpus=2)
    site.runs("own", "a", 0)
    site.runs("else", "a", 1)
    site.suspended("other", "a", 0, any_gpu=True)
    [plan] = site.turns()
    assert (victims(plan), moved(plan)) == ([("own", "checkpoint")], {})


def test_a_job_that_may_not_move_waits_for_its_own_gpu() -> None:
    site = Site("a", gpus=2)
    site.runs("beside", "a", 0, ran_s=10)
    site.runs("long", "a", 1)
    site.suspended("other", "a", 0)
    assert site.turns() == []


def test_a_job_of_which_placement_says_that_it_cannot_move_is_planned_on_its_own_gpu() -> None:
    site = Site("a", gpus=2)
    site.runs("beside", "a", 0, ran_s=10)
    site.runs("long", "a", 1)
    site.suspended("other", "a", 0, any_gpu=True)
    [plan] = site.turns()
    uids = tuple(one.uid for one in plan.beneficiaries)
    site.send(m.Answered(Reserved(plan_id=plan.plan_id, ok=False, reason="it cannot", cannot_move=uids)))
    assert site.turns(REFUSED_S + 2) == []


# --- idle jobs ------------------------------------------------------------------------------------------------------


def test_an_idle_job_yields_before_one_of_a_higher_level_however_short_its_turn() -> None:
    site = Site("a", gpus=2)
    site.runs("longer", "a", 0, ran_s=10 * LONG_S)
    site.runs("notebook", "a", 1, ran_s=5)
    site.idle("notebook")
    site.waits("new")
    [plan] = site.turns()
    assert victims(plan) == [("notebook", "checkpoint")]


def test_a_job_of_any_level_takes_the_turn_of_an_idle_one() -> None:
    site = Site("a", gpus=1)
    site.suspended("old", "a", 0, had_s=10 * LONG_S)
    site.runs("notebook", "a", 0, ran_s=5)
    assert site.turns() == []
    site.idle("notebook")
    [plan] = site.turns(31)
    assert victims(plan) == [("notebook", "checkpoint")]
    assert [one.name for one in plan.beneficiaries] == ["old"]


def test_nothing_yields_to_a_suspended_job_that_is_idle_until_it_wants_the_gpu() -> None:
    site = Site("a", gpus=1)
    site.suspended("notebook", "a", 0, since_s=60)
    site.runs("long", "a", 0)
    site.idle("notebook")
    assert site.turns() == []
    assert site.turns(31) == []
    site.idle(woken={"notebook": site.now})
    [plan] = site.turns()
    assert (victims(plan), [one.name for one in plan.beneficiaries]) == ([("long", "checkpoint")], ["notebook"])


def test_a_gang_is_back_before_its_watchdog_ends_it_however_much_it_has_had() -> None:
    site = Site("a", "b", gpus=1)
    for member, node in (("g-0", "a"), ("g-1", "b")):
        site.suspended(member, node, 0, had_s=99 * LONG_S, since_s=300, annotations=gang("g", 2))
        site.runs(f"long-{node}", node, 0)
    assert site.turns() == []
    assert site.turns(55) == []
    [plan] = site.turns(5)
    assert victims(plan) == [("long-a", "checkpoint"), ("long-b", "checkpoint")]
    assert sorted(one.name for one in plan.beneficiaries) == ["g-0", "g-1"]


def test_a_new_gang_goes_where_its_watchdog_leaves_it_a_place_among_the_turns() -> None:
    site = Site("a", "b", gpus=1)
    site.runs("longer", "a", 0, ran_s=10 * LONG_S)
    for name in ("one", "two", "three"):
        site.suspended(name, "a", 0, since_s=5, had_s=10 * LONG_S, annotations={names.ANNOTATION_WATCHDOG: "10m"})
    site.waits("with", annotations={names.ANNOTATION_WATCHDOG: "10m"})
    site.runs("long", "b", 0)
    [plan] = site.turns()
    assert [(one.name, one.node) for one in plan.beneficiaries] == [("with", "b")]
    site.waits("without")
    assert [[(one.name, one.node) for one in plan.beneficiaries] for plan in site.turns()] == [[("without", "a")]]


@pytest.mark.parametrize(("park", "yields"), [(2, "long"), (4, "g-0")])
def test_a_gang_yields_only_where_its_host_keeps_room_for_its_return(park: int, yields: str) -> None:
    site = Site("a", gpus=3, park_mib=park * TOTAL_MIB)
    for index in range(2):
        site.runs(f"g-{index}", "a", index, annotations=gang("g", 2), ran_s=90 * LONG_S)
    site.runs("long", "a", 2)
    for name in ("x", "y") if park == 4 else ("x",):
        site.waits(name, annotations=gang("w", 2) if park == 4 else {})
    [plan] = site.turns()
    assert victims(plan)[0] == (yields, "checkpoint")


def test_the_room_that_is_kept_is_for_those_that_yield_to_a_gang_that_comes_back() -> None:
    site = Site("a", gpus=2, park_mib=2 * TOTAL_MIB)
    site.suspended("back", "a", 0, since_s=355, had_s=LONG_S, annotations={names.ANNOTATION_WATCHDOG: "10m"})
    site.runs("long-0", "a", 0)
    site.runs("long-1", "a", 1)
    site.waits("new")
    assert site.turns() == [], "one GPU's memory is on the host, and as much is kept free"
    [plan] = site.turns(5)
    assert (victims(plan), [one.name for one in plan.beneficiaries]) == ([("long-0", "checkpoint")], ["back"])


@pytest.mark.parametrize(("park", "back"), [(3, []), (4, ["back-0", "back-1"])])
def test_what_a_gang_frees_that_comes_back_counts_as_room_for_the_next_return(park: int, back: list[str]) -> None:
    """Two gangs alternate where the host has room for both."""
    site = Site("a", gpus=2, park_mib=park * TOTAL_MIB)
    for index in range(2):
        site.suspended(f"back-{index}", "a", index, annotations=gang("b", 2))
        site.runs(f"long-{index}", "a", index, ran_s=9 * LONG_S, annotations=gang("l", 2))
    assert [one.name for plan in site.turns() for one in plan.beneficiaries] == back
    if back:
        site.suspended("other", "a", 0, mib=TOTAL_MIB // 4, annotations={names.ANNOTATION_WATCHDOG: "10m"})
        assert site.turns() == [], "a third one needs room to come back itself"


def test_an_idle_job_with_a_watchdog_yields_where_the_host_has_room_for_it_alone() -> None:
    """It comes back when it wants to, and not by a bound."""
    site = Site("a", gpus=1, park_mib=TOTAL_MIB)
    site.runs("idle", "a", 0, annotations={names.ANNOTATION_WATCHDOG: "10m"})
    site.waits("new")
    site.idle("idle", park_mib=TOTAL_MIB)
    [plan] = site.turns()
    assert victims(plan) == [("idle", "checkpoint")]


def test_a_job_that_is_due_back_does_not_wait_for_a_turn_that_is_worth_its_copies() -> None:
    site = Site("a", gpus=1, max_copy_part=0.01)
    site.suspended("back", "a", 0, since_s=365, had_s=LONG_S, annotations={names.ANNOTATION_WATCHDOG: "10m"})
    site.runs("long", "a", 0, ran_s=150)
    [plan] = site.turns()
    assert victims(plan) == [("long", "checkpoint")]


# --- where a pending job may run, and what keeps others from their turn ---------------------------------------------


@pytest.fixture
def two_nodes() -> Site:
    """The job that would yield first runs on a."""
    made = Site("a", "b", gpus=1)
    made.runs("first", "a", 0, ran_s=10 * LONG_S)
    made.runs("second", "b", 0)
    return made


def test_no_turn_ends_on_a_node_that_the_pending_pod_may_not_use(two_nodes: Site) -> None:
    two_nodes.waits("new", node_selector={"kubernetes.io/hostname": "b"})
    (plan,) = two_nodes.turns()
    assert (plan.beneficiaries[0].node, victims(plan)) == ("b", [("second", "checkpoint")])


def test_no_turn_ends_on_a_node_that_takes_no_pods(two_nodes: Site) -> None:
    two_nodes.send(m.FactsSeen((Put(object=build.node("a", unschedulable=True)),)))
    two_nodes.waits("new")
    (plan,) = two_nodes.turns()
    assert (plan.beneficiaries[0].node, victims(plan)) == ("b", [("second", "checkpoint")])


def test_a_node_that_placement_has_refused_is_not_tried_again(two_nodes: Site) -> None:
    """It knows filters that depend on other pods."""
    two_nodes.waits("new")
    (refused,) = two_nodes.turns()
    two_nodes.send(m.Answered(Reserved(plan_id=refused.plan_id, ok=False, reason="anti-affinity")))
    later = two_nodes.turns(REFUSED_S + 1)
    assert [(refused.beneficiaries[0].node, plan.beneficiaries[0].node) for plan in later] == [("a", "b")]


@pytest.mark.parametrize(
    ("impossible", "notes"),
    [({"requests": {"cpu": "500"}}, {}), ({"node_selector": {"kubernetes.io/hostname": "none"}}, {})],
    ids=["more CPU than a node has", "no node that it may use"],
)
def test_a_job_that_fits_nowhere_keeps_no_other_from_its_turn(
    two_nodes: Site, impossible: dict[str, Any], notes: dict[str, str]
) -> None:
    """Both ask for the same GPUs."""
    two_nodes.waits("impossible", annotations=notes, **impossible)
    two_nodes.now += 30
    two_nodes.waits("possible")
    assert [plan.beneficiaries[0].name for plan in two_nodes.turns(40.0)] == ["possible"]


def test_the_first_jobs_of_all_queues_are_served_in_order_of_their_waits() -> None:
    """One queue with many waiting jobs does not take all plans that may be proposed."""
    site = Site(*"abcd", gpus=1, max_plans=2)
    site.send(m.FactsSeen((Put(object=build.queues("queues: [{name: many}, {name: one}]")),)))
    for node in "abc":
        site.runs(f"many-{node}", node, 0, labels={names.LABEL_QUEUE: "many"})
    site.runs("one-d", "d", 0, labels={names.LABEL_QUEUE: "one"})
    for number in range(4):
        site.waits(f"young-{number}", labels={names.LABEL_QUEUE: "many"})
    old = datetime.fromtimestamp(site.now - 90_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    site.waits("overdue", labels={names.LABEL_QUEUE: "one"}, created=old)
    assert site.turns()[0].beneficiaries[0].name == "overdue"


def planned(site: Site, within_s: int = 40) -> Plan | None:
    """The first plan within so many seconds."""
    return next((plan for _ in range(within_s) for plan in site.turns(1.0)), None)


@pytest.mark.parametrize("members", [64, 72])
def test_a_gang_gets_the_turns_of_as_many_jobs_as_it_has_members(members: int) -> None:
    """64 of them are tried first."""
    site = Site(*(f"n{number}" for number in range(members // 8)), gpus=8)
    for number in range(members):
        site.runs(f"one-{number}", f"n{number // 8}", number % 8, ran_s=200_000 + number)
    for number in range(members):
        site.waits(f"g-{number}", annotations=gang("g", members), created="2027-01-13T08:00:00Z")
    plan = planned(site)
    assert plan is not None
    assert len(plan.victims) == members


@pytest.mark.parametrize("full", [15, 17])
def test_nodes_whose_hosts_are_full_hide_no_other_node(full: int) -> None:
    """Sixteen nodes are tried. Those with the highest levels come first, and they are always the same."""
    site = Site(*(f"n{number}" for number in range(full)), gpus=1, park_mib=0)
    site.send(m.FactsSeen((Put(object=build.node("z")),)))
    site.send(m.InventorySeen(build.inventory("z", gpus=1, park_mib=8 * TOTAL_MIB)))
    for number in range(full):
        site.runs(f"long-{number}", f"n{number}", 0, ran_s=300_000)
    site.runs("less-long", "z", 0, ran_s=250_000)
    site.waits("new")
    plan = planned(site)
    assert plan is not None
    assert victims(plan) == [("less-long", "checkpoint")]


def test_a_round_looks_up_what_watchdogs_load_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes a look at every grant, and a round makes several plans."""
    site = Site(*"abcd", gpus=1, max_plans=4)
    for node in "abcd":
        site.runs(f"long-{node}", node, 0)
    for number in range(4):
        site.waits(f"g-{number}", annotations=gang(f"g-{number}", 1) | {names.ANNOTATION_WATCHDOG: "600s"})
    looked: list[int] = []
    found = TurnPolicy.watchdog_loads

    def counted(self: TurnPolicy) -> dict[tuple[str, str], WatchdogLoad]:
        looked.append(1)
        return found(self)

    monkeypatch.setattr(TurnPolicy, "watchdog_loads", counted)
    assert len(site.turns()) == 4
    assert len(looked) == 1


def test_a_new_member_of_a_suspended_gang_takes_no_turn_without_it() -> None:
    site = Site("a", gpus=2)
    for number in range(2):
        site.runs(f"busy-{number}", "a", number)
        site.suspended(f"g-{number}", "a", number, annotations=gang("g", 2))
    site.idle("g-0", "g-1")
    site.waits("g-2", annotations=gang("g", 2))
    assert planned(site) is None, "nor does the gang, for it is idle"


def test_a_plan_has_time_for_slow_copies() -> None:
    """At its deadline it would be given up, and what is in the middle of its copy resumed."""
    site = Site("a", gpus=1)
    assert (TOTAL_MIB, site.config.deadline_s) == (81_920, 120)
    slow = build.inventory("a", gpus=1, park_mib=8 * TOTAL_MIB, generation=2)
    host = msgspec.structs.replace(slow.host_memory, out_mib_per_s=800, back_mib_per_s=1600)
    site.send(m.InventorySeen(msgspec.structs.replace(slow, host_memory=host)))
    site.runs("long", "a", 0, ran_s=40 * 86_400)
    site.waits("new")
    plan = planned(site)
    assert plan is not None
    grace_s = plan.victims[0].grace_s
    assert plan.deadline_s == max(120 + grace_s, round(100 + 2 * 102.4))


@pytest.mark.parametrize(("failed", "next_"), [(("j3",), (0, 1, 2)), ((), (1, 2, 3))])
def test_a_victim_that_cannot_be_suspended_does_not_bar_those_beside_it(
    failed: tuple[str, ...], next_: tuple[int, ...]
) -> None:
    """The last one yields first, and cannot be stopped; the other three are enough."""
    site = Site("a", gpus=4, park_mib=64 * TOTAL_MIB)
    for number in range(4):
        site.runs(f"j{number}", "a", number, ran_s=200_000 + number)
    for number in range(3):
        site.waits(f"g-{number}", annotations=gang("g", 3))
    first = planned(site)
    assert first is not None
    assert victims(first) == [(f"j{number}", "checkpoint") for number in (1, 2, 3)]
    uids = tuple(victim.uid for victim in first.victims if victim.name in failed)
    site.send(m.Ended(first.plan_id, executed=False, failed=uids))
    second = planned(site, 60)
    assert second is not None
    assert victims(second) == [(f"j{number}", "checkpoint") for number in next_]


def test_jobs_are_put_on_the_host_by_what_they_may_have() -> None:
    """Least memory first: one with a small request may have more than the host holds."""
    site = Site("a", gpus=3, park_mib=80_000)
    site.runs("a", "a", 0, mib=10_000, memory_limit_mib=60_000, ran_s=300_000)
    for number in (1, 2):
        site.runs(f"b{number}", "a", number, mib=40_000, ran_s=200_000)
    for number in range(2):
        site.waits(f"g-{number}", mib=TOTAL_MIB, annotations=gang("g", 2))
    plan = planned(site)
    assert plan is not None
    assert victims(plan) == [("b1", "checkpoint"), ("b2", "checkpoint")]
