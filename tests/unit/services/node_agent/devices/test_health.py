"""The health of GPUs as tables of observations and the states that follow."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from services.node_agent.devices.health import HOT, POWER_BRAKE, Health, Symptoms
from services.node_agent.devices.xid import classify
from services.node_agent.state import Ailment, GpuHistory

WELL = Symptoms(
    uuid="A", recovery=0, remaps_rows=True, pcie_width=16, max_pcie_width=16, pcie_generation=5, max_pcie_generation=5
)


def symptoms(**how: Any) -> Symptoms:
    return msgspec.structs.replace(WELL, **how)


def make_health(*ailments: Ailment, **how: Any) -> Health:
    health = Health(ailments, **({"recover_s": 30.0, "throttled_s": 60.0} | how))
    health.update([WELL, symptoms(uuid="B")], "boot-1", 0, 0.0)
    return health


def look(made: Health, seen: Symptoms, now: float, *, boot: str = "boot-1", loaded: int = 0) -> str:
    made.update([seen], boot, loaded, now)
    return made.state("A", now)[0]


def restarted(made: Health) -> Health:
    """The health of an agent that starts with the checkpoint of this one."""
    saved = msgspec.json.decode(msgspec.json.encode(made.histories), type=tuple[GpuHistory, ...])
    return Health(made.ailments, saved, recover_s=30.0, throttled_s=60.0)


def states(made: Health, now: float) -> tuple[str, str]:
    return made.state("A", now)[0], made.state("B", now)[0]


@pytest.mark.parametrize(
    ("how", "state", "says"),
    [
        ({}, "healthy", ""),
        ({"lost": "GPU is lost"}, "unhealthy", "NVML: GPU is lost"),
        ({"silent": "NVML hangs"}, "suspect", "NVML hangs"),
        ({"recovery": 1}, "unhealthy", "asks for a GPU reset"),
        ({"recovery": 2}, "unhealthy", "reboot of the node"),
        ({"recovery": 3}, "suspect", "peer-to-peer"),
        ({"rows_failed": True}, "unhealthy", "should be replaced"),
        ({"rows_pending": True}, "suspect", "waits for a GPU reset to be remapped"),
        ({"rows_pending": True, "rows_failed": True}, "unhealthy", "should be replaced"),
        ({"ecc_aggregate": 40}, "healthy", ""),
        ({"ecc_volatile": 2, "remaps_rows": False}, "unhealthy", "2 uncorrectable ECC errors"),
        ({"fabric_down": True}, "suspect", "fabric manager"),
        ({"pcie_width": 8, "pcie_generation": 1, "busy": True}, "healthy", ""),
        ({"pcie_width": 0, "max_pcie_width": 0}, "healthy", ""),
        ({"clock_reasons": HOT | POWER_BRAKE}, "healthy", ""),
        ({"clock_reasons": 0x4 | 0x20}, "healthy", ""),
    ],
    ids=lambda value: None if not isinstance(value, dict) else "+".join(value) or "well",
)
def test_each_symptom_has_its_state(how: dict[str, Any], state: str, says: str) -> None:
    """And the other GPU is unaffected."""
    health = make_health()
    health.update([symptoms(**how), symptoms(uuid="B")], "boot-1", 0, 1.0)
    found, reason = health.state("A", 1.0)
    assert (found, health.state("B", 1.0)) == (state, ("healthy", ""))
    assert says in reason


@pytest.mark.parametrize(
    ("number", "verdict"),
    [
        *((n, "harmless") for n in (13, 31, 43, 45, 63, 68, 92, 94, 109, 154)),
        *((n, "reset") for n in (46, 48, 62, 64, 74, 95, 119, 120, 140)),
        *((n, "reboot") for n in (79, 151)),
        *((n, "suspect") for n in (145, 171, 4711)),
    ],
)
def test_xids_are_classified_as_in_the_catalogue_of_nvidia(number: int, verdict: str) -> None:
    assert classify(number)[0] == verdict


def test_an_application_xid_changes_nothing() -> None:
    health = make_health()
    health.xid("A", 31, 5.0)
    assert states(health, 5.0) == ("healthy", "healthy")


def test_an_unknown_xid_makes_the_gpu_suspect_for_a_while() -> None:
    health = make_health()
    health.xid("A", 4711, 5.0)
    assert states(health, 5.0) == ("suspect", "healthy")
    assert look(health, WELL, 34.9) == "suspect"
    assert look(health, WELL, 35.1) == "healthy"


def test_an_xid_without_a_gpu_counts_for_all_gpus() -> None:
    health = make_health()
    health.xid("", 79, 5.0)
    assert states(health, 5.0) == ("unhealthy", "unhealthy")


def test_an_operator_can_declare_an_xid_harmless() -> None:
    health = make_health(harmless_xids=(74,))
    health.xid("A", 74, 5.0)
    assert states(health, 5.0) == ("healthy", "healthy")


def test_a_fatal_xid_stays_even_without_other_symptoms() -> None:
    health = make_health()
    health.xid("A", 48, 5.0)
    assert look(health, symptoms(recovery=-1), 9000.0) == "unhealthy"
    assert "Xid 48" in health.state("A", 9000.0)[1]
    assert [a.uuid for a in health.ailments] == ["A"]


@pytest.mark.parametrize(
    ("number", "seen", "state"),
    [
        (48, {"boot": "boot-2"}, "healthy"),
        (48, {"loaded": 1}, "healthy"),
        (79, {"boot": "boot-2"}, "healthy"),
        (79, {"loaded": 1}, "unhealthy"),
    ],
    ids=["reset: a reboot", "reset: driver reloaded", "reboot: a reboot", "reboot: a driver reload is not enough"],
)
def test_a_fatal_xid_is_cleared_by_a_reset_or_a_reboot(number: int, seen: dict[str, Any], state: str) -> None:
    """After it, the usual time without faults; here it is over."""
    health = make_health()
    health.xid("A", number, 5.0)
    assert look(health, WELL, 1000.0, **seen) == state


def test_the_recovery_action_of_the_driver_shows_that_a_reset_was_done() -> None:
    """Recovery must have been asked for first: an action of none just after the XID proves nothing."""
    health = make_health()
    health.xid("A", 95, 5.0)
    assert look(health, WELL, 6.0) == "unhealthy"
    assert look(health, symptoms(recovery=1), 7.0) == "unhealthy"
    assert look(health, WELL, 8.0) == "suspect"
    assert look(health, WELL, 38.0) == "healthy"
    assert health.ailments == ()


def test_an_operator_can_clear_an_ailment() -> None:
    health = make_health()
    health.xid("A", 74, 5.0)
    health.clear_ailments("A")
    assert health.state("A", 6.0) == ("healthy", "")


def test_a_symptom_that_is_still_seen_counts_after_ailments_are_cleared() -> None:
    health = make_health()
    health.xid("A", 64, 5.0)
    health.update([symptoms(rows_failed=True)], "boot-1", 0, 5.0)
    health.clear_ailments("A")
    assert health.state("A", 6.0)[0] == "unhealthy"


def test_ailments_survive_the_agent_but_not_a_reboot() -> None:
    old = Ailment(uuid="A", reason="Xid 74: NVLink error", boot_id="boot-1")
    health = Health([old])
    assert look(health, symptoms(recovery=-1), 1.0) == "unhealthy"
    assert look(health, symptoms(recovery=-1), 2.0, boot="boot-2") == "healthy"


def test_a_driver_that_asks_for_no_recovery_clears_the_ailment_of_an_earlier_agent() -> None:
    """Whether the driver asked meanwhile is unknown; what it reports now counts."""
    health = Health([Ailment(uuid="A", reason="Xid 95", boot_id="boot-1")])
    assert look(health, WELL, 1.0) == "healthy"


def test_a_gpu_comes_back_only_after_a_time_without_faults() -> None:
    health = make_health()
    assert look(health, symptoms(lost="GPU is lost"), 10.0) == "unhealthy"
    assert look(health, WELL, 11.0) == "suspect"
    assert "no fault for less than 30 s after: NVML: GPU is lost" in health.state("A", 11.0)[1]
    assert look(health, symptoms(lost="GPU is lost"), 20.0) == "unhealthy"
    assert look(health, WELL, 49.0) == "suspect"
    assert look(health, WELL, 50.0) == "healthy"


def test_heat_counts_only_once_it_lasts() -> None:
    health = make_health()
    hot = symptoms(clock_reasons=HOT)
    assert [look(health, hot, now) for now in (0.0, 30.0, 59.0, 60.0)] == ["healthy", "healthy", "healthy", "suspect"]
    assert "too hot for more than 60 s" in health.state("A", 60.0)[1]
    assert look(health, WELL, 61.0) == "suspect"
    assert [
        look(health, seen, now) for seen, now in ((WELL, 91.0), (hot, 92.0), (WELL, 100.0), (hot, 101.0), (hot, 155.0))
    ] == ["healthy"] * 5


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"clock_reasons": POWER_BRAKE}, "slowed down by the power brake"),
        ({"pcie_width": 8}, "PCIe link of width 8 where 16 is possible"),
        ({"pcie_generation": 1, "busy": True}, "PCIe link of generation 1 where 5 is possible"),
        ({"pcie_generation": 1, "busy": False}, ""),
        ({"clock_reasons": 0x4 | 0x20}, ""),
        ({"pcie_width": 0, "max_pcie_width": 0, "pcie_generation": 0, "busy": True}, ""),
    ],
    ids=["power brake", "narrow link", "slow link", "idle link", "software caps", "unknown link"],
)
def test_slowdowns_count_only_once_they_last(how: dict[str, Any], says: str) -> None:
    health = make_health()
    for now in (0.0, 59.0, 61.0):
        health.update([symptoms(**how)], "boot-1", 0, now)
    assert health.state("A", 61.0) == (("suspect", f"{says} for more than 60 s") if says else ("healthy", ""))


def test_new_ecc_errors_make_a_gpu_that_remaps_rows_suspect_for_a_while() -> None:
    """Errors from before are known; after a driver reload the count starts from zero."""
    health = make_health()
    assert look(health, symptoms(ecc_volatile=3), 10.0) == "suspect"
    assert look(health, symptoms(ecc_volatile=3), 40.0) == "healthy"
    assert look(health, symptoms(ecc_volatile=0), 41.0, loaded=1) == "healthy"
    assert look(health, symptoms(ecc_volatile=1), 42.0, loaded=1) == "suspect"


def test_errors_from_before_the_agent_started_are_not_new() -> None:
    health = Health()
    assert look(health, symptoms(ecc_volatile=7), 1.0) == "healthy"


def test_a_gpu_in_recovery_stays_in_recovery_when_the_agent_restarts() -> None:
    made = make_health()
    assert look(made, symptoms(lost="GPU is lost"), 10.0) == "unhealthy"
    assert look(made, WELL, 11.0) == "suspect"
    after = restarted(made)
    assert look(after, WELL, 20.0) == "suspect"
    assert "no fault for less than 30 s after: NVML: GPU is lost" in after.state("A", 20.0)[1]
    assert after.state("B", 20.0) == ("healthy", "")
    assert look(after, WELL, 40.0) == "healthy"


def test_a_gpu_in_recovery_after_an_xid_stays_in_recovery_when_the_agent_restarts() -> None:
    made = make_health()
    made.xid("A", 4711, 5.5)
    after = restarted(made)
    assert [look(after, WELL, now) for now in (6.0, 35.9, 36.0)] == ["suspect", "suspect", "healthy"]


def test_a_fault_that_was_seen_when_the_agent_ended_may_have_lasted_until_the_next_one_started() -> None:
    made = make_health()
    look(made, symptoms(lost="GPU is lost"), 10.0)
    after = restarted(made)
    assert [look(after, WELL, now) for now in (1000.0, 1029.9, 1030.0)] == ["suspect", "suspect", "healthy"]


def test_a_moment_that_was_rounded_up_is_not_later_than_the_restart() -> None:
    made = make_health()
    made.xid("A", 4711, 5.1)
    assert [one.fault_at_s for one in made.histories] == [6, None]
    after = restarted(made)
    assert [look(after, WELL, now) for now in (5.2, 35.1, 35.2)] == ["suspect", "suspect", "healthy"]


def test_ecc_errors_while_no_agent_ran_are_new() -> None:
    made = make_health()
    assert look(made, symptoms(ecc_volatile=2), 10.0) == "suspect"
    assert look(made, symptoms(ecc_volatile=2), 50.0) == "healthy"
    assert look(restarted(made), symptoms(ecc_volatile=2), 60.0) == "healthy"
    assert look(restarted(made), symptoms(ecc_volatile=3), 60.0) == "suspect"


def test_heat_that_counts_goes_on_to_count_when_the_agent_restarts() -> None:
    made, hot = make_health(), symptoms(clock_reasons=HOT)
    assert [look(made, hot, now) for now in (1.0, 60.0)] == ["healthy", "healthy"]
    assert look(restarted(made), hot, 61.0) == "healthy", "heat that does not count yet is not kept"
    assert look(made, hot, 61.0) == "suspect"
    after = restarted(made)
    assert look(after, hot, 62.0) == "suspect"
    assert "too hot for more than 60 s" in after.state("A", 62.0)[1]
    assert [look(after, WELL, now) for now in (63.0, 91.9, 92.0)] == ["suspect", "suspect", "healthy"]


def test_histories_mean_nothing_in_another_boot() -> None:
    """Its clock has begun anew, so that a moment of the last boot may lie in the future."""
    made = make_health()
    look(made, symptoms(lost="GPU is lost", ecc_volatile=9), 5000.0)
    look(made, symptoms(ecc_volatile=9), 5001.0)
    after = restarted(made)
    assert look(after, symptoms(ecc_volatile=10), 1.0, boot="boot-2") == "healthy"
    assert {one.boot_id for one in after.histories} == {"boot-2"}


def test_a_fault_that_an_operator_has_cleared_is_not_kept() -> None:
    made = make_health()
    made.xid("A", 74, 5.0)
    made.clear_ailments("A")
    assert look(restarted(made), WELL, 6.0) == "healthy"


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"lost": "GPU is lost"},
        {"silent": "NVML hangs"},
        {"recovery": 1},
        {"clock_reasons": HOT},
        {"ecc_volatile": 3},
    ],
    ids=str,
)
def test_histories_change_when_a_fault_begins_and_ends_and_not_at_each_poll(how: dict[str, Any]) -> None:
    """Each change is written to the disk."""
    made = make_health()
    found = [made.histories]
    for second in range(1, 400):
        made.update([symptoms(**how) if 100 <= second < 300 else WELL], "boot-1", 0, float(second))
        if made.histories != found[-1]:
            found.append(made.histories)
    assert len(found) <= 3


def test_heat_that_comes_and_goes_changes_no_history() -> None:
    made = make_health()
    found = made.histories
    for second in range(1, 200):
        made.update([symptoms(clock_reasons=HOT if second % 2 else 0)], "boot-1", 0, float(second))
        assert made.histories == found


def test_a_storm_of_xids_changes_the_history_once_a_second() -> None:
    made = make_health()
    found = set()
    for number in range(1000):
        made.xid("A", 4711, 10.0 + number / 500)
        found.add(made.histories)
    assert len(found) == 3


SEEN: dict[str, dict[str, Any]] = {
    "well": {},
    "lost": {"lost": "GPU is lost"},
    "silent": {"silent": "NVML hangs"},
    "pending": {"rows_pending": True},
    "reset": {"recovery": 1},
    "hot": {"clock_reasons": HOT},
}
STEPS = st.lists(
    st.tuples(st.sampled_from((0.3, 1.0, 7.0, 29.0, 65.0)), st.sampled_from((*SEEN, "ecc", 4711, 31))), max_size=25
)
WORSE = {"healthy": 0, "suspect": 1, "unhealthy": 2}


@given(before=STEPS, after=STEPS)
def test_an_agent_that_restarts_judges_a_gpu_as_strictly_as_one_that_goes_on(before: Any, after: Any) -> None:
    """Whatever was seen before and after. Only a slowdown that did not count yet begins anew."""
    went_on, now, errors = make_health(), 0.0, 0

    def step(made: Health, what: str | int) -> None:
        if isinstance(what, int):
            made.xid("A", what, now)
        else:
            made.update([symptoms(**SEEN.get(what, {}), ecc_volatile=errors)], "boot-1", 0, now)

    for passed_s, what in before:
        now, errors = now + passed_s, errors + (what == "ecc")
        step(went_on, what)
    assume(not before or before[-1][1] != "hot" or went_on.state("A", now)[0] != "healthy")
    new = restarted(went_on)
    for made in (went_on, new):  # an agent that starts polls first
        step(made, "well")
    for passed_s, what in after:
        now, errors = now + passed_s, errors + (what == "ecc")
        for made in (went_on, new):
            step(made, what)
        assert WORSE[new.state("A", now)[0]] >= WORSE[went_on.state("A", now)[0]]


def test_an_unknown_gpu_is_healthy() -> None:
    assert Health().state("Z", 0.0) == ("healthy", "")
